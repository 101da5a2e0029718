#ifndef CADRE_KERNELS_ROUTER_ROUTER_Z_LOSS_H_
#define CADRE_KERNELS_ROUTER_ROUTER_Z_LOSS_H_

// The z-loss keeps router logits small: sum over tokens of logsumexp(logits)^2.
// Stateless.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct RouterZLossArgs {
  Tensor logits;  // [T,E], f32 or f64; f32 on CUDA
  Tensor mask;  // optional i32 [T]: 0 marks a padding token, which is left out
  Tensor sum;   // f64 [1], added to; absent: not wanted
  // d(total loss)/d(sum).
  double coefficient = 0.0;
  Tensor dlogits;  // [T,E], added to; absent: not wanted
};

// Sums in a fixed order, on CUDA in f64: bitwise deterministic.
absl::Status RouterZLoss(const Exec& exec, const RouterZLossArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ROUTER_ROUTER_Z_LOSS_H_
