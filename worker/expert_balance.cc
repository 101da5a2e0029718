#include "worker/expert_balance.h"

#include <algorithm>
#include <limits>

#include "plan/load_metrics.h"

namespace cadre {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool SameShape(const LoadWindow::Matrix& a, const LoadWindow::Matrix& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(),
      [](const auto& x, const auto& y) { return x.size() == y.size(); });
}

}  // namespace

ExpertBalance MeasureBalance(
    const std::vector<std::vector<int64_t>>& expert_tokens) {
  ExpertBalance balance;
  double sum_mean = 0.0, sum_max = 0.0;
  int layers = 0;
  balance.balancedness_worst = 1.0;
  for (const std::vector<int64_t>& tokens : expert_tokens) {
    const LoadMetrics load = EvaluateLoad({tokens.begin(), tokens.end()});
    if (load.max == 0.0) continue;
    ++layers;
    for (const int64_t count : tokens) balance.routed += count;
    const double dead = static_cast<double>(load.dead_experts) /
                        static_cast<double>(tokens.size());
    sum_mean += load.mean;
    sum_max += load.max;
    balance.balancedness_worst =
        std::min(balance.balancedness_worst, load.balancedness);
    balance.cv_mean += load.coefficient_of_variation;
    balance.cv_max = std::max(balance.cv_max, load.coefficient_of_variation);
    balance.dead_mean += dead;
    balance.dead_max = std::max(balance.dead_max, dead);
  }
  if (layers == 0) {
    return {.balancedness_step = kNan,
            .balancedness_worst = kNan,
            .cv_mean = kNan,
            .cv_max = kNan,
            .dead_mean = kNan,
            .dead_max = kNan};
  }
  balance.balancedness_step = sum_mean / sum_max;
  balance.cv_mean /= layers;
  balance.dead_mean /= layers;
  return balance;
}

const LoadWindow::Matrix& LoadWindow::Add(const Matrix& step) {
  if (!steps_.empty() && !SameShape(steps_.back(), step)) Clear();
  if (steps_.empty()) {
    for (const auto& layer : step) sums_.emplace_back(layer.size());
  }
  Accumulate(step, 1);
  steps_.push_back(step);
  if (std::ssize(steps_) > max_steps_) {
    Accumulate(steps_.front(), -1);
    steps_.pop_front();
  }
  return sums_;
}

void LoadWindow::Clear() {
  steps_.clear();
  sums_.clear();
}

void LoadWindow::Accumulate(const Matrix& step, int64_t sign) {
  for (size_t l = 0; l < step.size(); ++l) {
    for (size_t i = 0; i < step[l].size(); ++i) {
      sums_[l][i] += sign * step[l][i];
    }
  }
}

}  // namespace cadre
