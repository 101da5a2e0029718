#ifndef CADRE_KERNELS_L2NORM_L2NORM_H_
#define CADRE_KERNELS_L2NORM_L2NORM_H_

// Scales each head's query or key to unit length in front of linear attention.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct L2NormForwardArgs {
  Tensor x;  // [...,K]
  Tensor y;  // as x; may be x itself
  double eps = 1e-6;
};

struct L2NormBackwardArgs {
  Tensor x;   // as given to the forward
  Tensor dy;  // as x
  Tensor dx;  // as x, overwritten; may be dy itself
  double eps = 1e-6;
};

// nu = sqrt(sum(x^2) + eps) (eps inside the root) ;  y = x / nu.
//
// Any number of rows; K may be 0. f32 or f64 on the CPU, bf16 or f32 on CUDA.
// Determinism: bitwise. Cost: one read and one write of x.
absl::Status L2NormForward(const Exec& exec, const L2NormForwardArgs& args);

// dx = (dy - y <y,dy>) / nu.
absl::Status L2NormBackward(const Exec& exec, const L2NormBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_L2NORM_L2NORM_H_
