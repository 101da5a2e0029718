#ifndef CADRE_KERNELS_GLU_GLU_H_
#define CADRE_KERNELS_GLU_GLU_H_

// Gated linear units: what a feed-forward block does between its up and its
// down projection. R rows, F the width. Stateless.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct GluActivation {
  enum class Kind {
    kSwiGlu,         // h = silu(g) u
    kClampedSwiGlu,  // g <- min(g, limit), u <- clip(u, -limit, limit) first
    kSiTu,           // h = beta tanh(g/beta) sigmoid(g)
                     //     * linear_beta tanh(u/linear_beta)
  } kind = Kind::kSwiGlu;
  double limit = 0.0;        // kClampedSwiGlu, > 0
  double beta = 0.0;         // kSiTu, > 0
  double linear_beta = 0.0;  // kSiTu, > 0
};

struct GluForwardArgs {
  // Either both halves as tensors of their own ...
  Tensor gate;  // [R,F]
  Tensor up;    // [R,F]
  // ... or one tensor of rows [gate F | up F]. Exactly one of the two forms.
  Tensor gate_up;  // [R,2F]
  GluActivation activation;
  Tensor h;  // [R,F]
};

struct GluBackwardArgs {
  Tensor gate, up, gate_up;  // as given to the forward
  GluActivation activation;
  Tensor dh;  // [R,F]
  // In the form of the input, overwritten; each may be the input itself.
  Tensor dgate, dup;  // [R,F]
  Tensor dgate_up;    // [R,2F]
};

// Any R and F, 0 included. f32 or f64 on the CPU, computed in that type; bf16
// or f32 on CUDA, computed in f32.
// Aliasing: h may be gate or up, never gate_up. Determinism: bitwise.
// Cost: reads two, writes one.
absl::Status GluForward(const Exec& exec, const GluForwardArgs& args);

// Outside a clamp's bound the gradient is 0, on the bound it is 1. dh must not
// overlap an output.
absl::Status GluBackward(const Exec& exec, const GluBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_GLU_GLU_H_
