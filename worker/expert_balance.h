#ifndef CADRE_WORKER_EXPERT_BALANCE_H_
#define CADRE_WORKER_EXPERT_BALANCE_H_

// How evenly tokens fall on experts or ranks, of a step or of the last ones.
// Not thread-safe; MeasureBalance is pure.

#include <cstdint>
#include <deque>
#include <vector>

namespace cadre {

// Balance of the routed experts, from token counts by MoE layer and expert.
// Empty or unused layers are left out; without any, all are NaN.
struct ExpertBalance {
  double balancedness_step = 0.0;          // sum of means / sum of maxima
  double balancedness_worst = 0.0;         // least mean / max of a layer
  double cv_mean = 0.0, cv_max = 0.0;      // std / mean over the experts
  double dead_mean = 0.0, dead_max = 0.0;  // share of experts without a token
  int64_t routed = 0;                      // token-expert pairs
};
ExpertBalance MeasureBalance(
    const std::vector<std::vector<int64_t>>& expert_tokens);

// Sums by [layer][column] over the last steps.
class LoadWindow {
 public:
  using Matrix = std::vector<std::vector<int64_t>>;

  explicit LoadWindow(int64_t max_steps) : max_steps_(max_steps) {}

  // Adds a step and returns the sums. A step of another shape starts afresh.
  const Matrix& Add(const Matrix& step);
  void Clear();

 private:
  void Accumulate(const Matrix& step, int64_t sign);

  const int64_t max_steps_;
  std::deque<Matrix> steps_;
  Matrix sums_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_EXPERT_BALANCE_H_
