#include "plan/load_metrics.h"

#include <algorithm>
#include <cmath>

namespace cadre {

LoadMetrics EvaluateLoad(const std::vector<double>& load) {
  LoadMetrics out;
  if (load.empty()) return out;
  double sum = 0.0;
  for (const double rows : load) {
    sum += rows;
    out.max = std::max(out.max, rows);
    if (rows <= 0) ++out.dead_experts;
  }
  out.mean = sum / load.size();
  if (sum <= 0) return out;
  double squares = 0.0;
  for (const double rows : load) {
    squares += (rows - out.mean) * (rows - out.mean);
  }
  out.max_vio = out.max / out.mean - 1.0;
  out.balancedness = out.mean / out.max;
  out.coefficient_of_variation = std::sqrt(squares / load.size()) / out.mean;
  return out;
}

LoadMetrics EvaluateLoads(const ExpertLoads& loads) {
  LoadMetrics out;
  if (loads.empty()) return out;
  double sum_max = 0.0;
  for (const std::vector<double>& load : loads) {
    const LoadMetrics layer = EvaluateLoad(load);
    out.mean += layer.mean;
    out.max = std::max(out.max, layer.max);
    sum_max += layer.max;
    out.max_vio += layer.max_vio;
    out.coefficient_of_variation += layer.coefficient_of_variation;
    out.dead_experts += layer.dead_experts;
  }
  if (sum_max > 0) out.balancedness = out.mean / sum_max;
  out.mean /= loads.size();
  out.max_vio /= loads.size();
  out.coefficient_of_variation /= loads.size();
  return out;
}

}  // namespace cadre
