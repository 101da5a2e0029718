#ifndef CADRE_KERNELS_GATED_RMSNORM_GATED_RMSNORM_H_
#define CADRE_KERNELS_GATED_RMSNORM_GATED_RMSNORM_H_

// The norm behind linear attention: RMSNorm of each head's output times an
// activation of the output gate.

#include "absl/status/status.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

enum class GateActivation {
  kSigmoid,  // KDA
  kSilu,     // Gated DeltaNet
};

struct GatedRmsNormForwardArgs {
  Tensor x;     // [...,V]: heads' outputs
  Tensor gate;  // as x, before the activation; or where gate_at says
  Tensor w;     // [V], one for all heads
  Tensor y;     // as x; may be x or gate itself
  double eps = 1e-6;
  GateActivation activation = GateActivation::kSigmoid;
  // With groups (of whole heads), x is [T,n,V] and the gate [T,P], of which n V
  // columns are its channels; then it is not y.
  ColumnGroups gate_at = {};
};

struct GatedRmsNormBackwardArgs {
  Tensor x;
  Tensor gate;
  Tensor w;
  Tensor dy;     // as x
  Tensor dx;     // as x, overwritten; may be dy itself
  Tensor dgate;  // as the gate, its channels overwritten; may be dy if dx is
                 // not and the gate is as x
  Tensor dw;     // [V], added to; optional
  double eps = 1e-6;
  GateActivation activation = GateActivation::kSigmoid;
  ColumnGroups gate_at = {};
};

// xhat = x (mean(x^2) + eps)^-1/2 ;  y = w xhat act(gate).
//
// Any number of rows, V >= 1 unless there are none. f32 or f64 on the CPU (w,
// dw alike); bf16 with f32 w, dw on CUDA. Nothing is saved: the backward
// repeats the row sums, which is cheaper than a saved tensor.
// Determinism: bitwise. Cost: reads x and gate, writes y.
absl::Status GatedRmsNormForward(const Exec& exec,
                                 const GatedRmsNormForwardArgs& args);

// dgate = dy w xhat act'(gate) ;  dx = RMSNorm backward of dy act(gate) ;
// dw += sum over rows dy act(gate) xhat.
absl::Status GatedRmsNormBackward(const Exec& exec,
                                  const GatedRmsNormBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_GATED_RMSNORM_GATED_RMSNORM_H_
