#ifndef CADRE_KERNELS_RMSNORM_RMSNORM_H_
#define CADRE_KERNELS_RMSNORM_RMSNORM_H_

// Root-mean-square norm over the last dimension: of hidden rows, and of heads
// when x is [T,H,D].

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct RmsNormForwardArgs {
  Tensor x;     // [...,D]
  Tensor w;     // [D]; absent = no weight (all ones)
  Tensor y;     // as x; may be x itself
  Tensor rstd;  // [rows] or any shape of that size, written; optional
  double eps = 1e-6;
  // Multiply by 1 + w instead of w (qwen3_next, qwen3_5_moe).
  bool unit_offset = false;
};

struct RmsNormBackwardArgs {
  Tensor x;     // as given to the forward
  Tensor w;     // likewise
  Tensor rstd;  // as the forward wrote it
  Tensor dy;    // as x
  Tensor dx;    // as x; may be dy itself
  Tensor dw;    // [D], added to; optional, needs w
  bool unit_offset = false;
  bool accumulate_dx = false;  // dx += instead of dx =
};

// rho = (mean(x^2) + eps)^-1/2 ;  xhat = rho x ;  y = w xhat  or  (1 + w) xhat.
//
// Any number of rows; D >= 1 unless there are no rows. f32 or f64 on the CPU
// (w, rstd, dw alike), where sums run in the scalar type; bf16 with f32 w,
// rstd, dw on CUDA.
// Determinism: bitwise. Cost: one read and one write of x.
absl::Status RmsNormForward(const Exec& exec, const RmsNormForwardArgs& args);

// u = w dy ;  dx = rho (u - xhat mean(u xhat)) ;  dw += sum over rows dy xhat.
//
// With accumulate_dx, dx must not be dy. Determinism: bitwise; dw is summed in
// row order within pieces that depend on the shape only.
absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_RMSNORM_RMSNORM_H_
