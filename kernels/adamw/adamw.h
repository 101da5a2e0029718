#ifndef CADRE_KERNELS_ADAMW_ADAMW_H_
#define CADRE_KERNELS_ADAMW_ADAMW_H_

// AdamW with decoupled weight decay, and the sum of squares behind a gradient
// norm. Stateless: moments are the caller's.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct AdamWArgs {
  // Any shape, updated in place; f32 or f64 on the CPU, f32 on CUDA (the master
  // copy of a bf16 weight).
  Tensor p;
  Tensor m;  // as p, updated
  Tensor v;  // as p, updated
  Tensor g;  // as p
  // CUDA only, optional: bf16 of p's shape, overwritten with the new p rounded
  // to nearest even. This is the weight that the model computes with.
  Tensor value;
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;         // t, 1 for the first update
  double grad_scale = 1.0;  // multiplies g first (clipping)
};

// g <- grad_scale g
// p <- p (1 - lr wd) ;  m <- beta1 m + (1 - beta1) g
// v <- beta2 v + (1 - beta2) g^2
// p <- p - lr/(1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
//
// Scalars are formed in double and rounded once to the type of p, elementwise
// arithmetic is in that type. Elementwise, so bitwise the same however the
// parameter is cut. Empty tensors are allowed. Aliasing: none.
absl::Status AdamW(const Exec& exec, const AdamWArgs& args);

// The same for many parameters, in as few launches as possible on CUDA.
absl::Status AdamW(const Exec& exec, absl::Span<const AdamWArgs> args);

struct SumOfSquaresArgs {
  Tensor x;    // any shape; f32 or f64 on the CPU, f32 or bf16 on CUDA
  Tensor sum;  // f64 [1], added to; on the device with CUDA
};
// In double: pieces of 4096 elements in order, each summed in order; the same
// bits whatever the number of threads. On CUDA one cluster of blocks sums in an
// order fixed by the size; no workspace.
absl::Status SumOfSquares(const Exec& exec, const SumOfSquaresArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ADAMW_ADAMW_H_
