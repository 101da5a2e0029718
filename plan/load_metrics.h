#ifndef CADRE_PLAN_LOAD_METRICS_H_
#define CADRE_PLAN_LOAD_METRICS_H_

// How evenly the router spreads its tokens. This is the expert level (quality
// of routing); the rank level, which costs time, is Balancedness in
// plan/expert_placement.h. The two are never mixed. Pure; thread-safe.

#include <cstdint>
#include <vector>

#include "plan/expert_placement.h"

namespace cadre {

struct LoadMetrics {
  double mean = 0.0;  // rows per expert
  double max = 0.0;
  // max / mean - 1; 0 is perfect, 0 without any load.
  double max_vio = 0.0;
  // mean / max; 1 is perfect, 1 without any load.
  double balancedness = 1.0;
  // Standard deviation over the experts / mean; 0 without any load.
  double coefficient_of_variation = 0.0;
  // Experts without a row; all of them without any load.
  int64_t dead_experts = 0;
};

// Of one layer: rows per logical expert, before any overflow policy.
LoadMetrics EvaluateLoad(const std::vector<double>& load);

// Over layers: mean, max_vio and the coefficient of variation are means of the
// layers' values, max is the highest, balancedness is sum of means / sum of
// maxima, dead experts are added.
LoadMetrics EvaluateLoads(const ExpertLoads& loads);

}  // namespace cadre

#endif  // CADRE_PLAN_LOAD_METRICS_H_
