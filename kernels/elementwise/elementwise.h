#ifndef CADRE_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
#define CADRE_KERNELS_ELEMENTWISE_ELEMENTWISE_H_

// The small glue between larger ops: adding, moving columns between layouts,
// sigmoid gates. Stateless. f32 or f64 on the CPU; all tensors of a call have
// one dtype. Deterministic. Empty tensors are fine.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// y += x; shapes equal by number of elements.
absl::Status AddInPlace(const Exec& exec, const Tensor& x, const Tensor& y);

struct CopyColumnsArgs {
  // Seen as matrices: [rows, elements / rows]. Splitting a [T,n,W] tensor into
  // parts of each head takes rows = T n; placing whole heads takes rows = T.
  Tensor src, dst;
  int64_t rows = 0;
  int64_t src_column = 0, dst_column = 0;
  int64_t width = 0;
  bool accumulate = false;  // add to dst instead of overwriting it
};
// dst[i, dst_column + j] = src[i, src_column + j] for j < width. src and dst
// do not overlap.
absl::Status CopyColumns(const Exec& exec, const CopyColumnsArgs& args);

// y = x sigmoid(gate). gate has x's shape, or [rows] (one gate a row of x as
// [rows, elements / rows]). y may be x.
absl::Status SigmoidGateForward(const Exec& exec, const Tensor& x,
                                const Tensor& gate, const Tensor& y);
struct SigmoidGateBackwardArgs {
  Tensor x, gate;  // as given to the forward
  Tensor dy;       // as x
  Tensor dx;       // overwritten; may be dy
  Tensor dgate;    // as gate, overwritten; may be neither dy nor dx
};
absl::Status SigmoidGateBackward(const Exec& exec,
                                 const SigmoidGateBackwardArgs& args);

struct DropoutArgs {
  Tensor x, y;  // y may be x
  double probability = 0.0;
  // Element i is kept or not by a hash of (seed, i): the same seed repeats the
  // mask, so that nothing is saved for the backward pass, which applies it to
  // the gradient.
  uint64_t seed = 0;
  bool accumulate = false;  // y += instead of y =
};
// y = x keep / (1 - probability).
absl::Status Dropout(const Exec& exec, const DropoutArgs& args);

// A well-mixed 64-bit value of two (splitmix64's finaliser).
uint64_t MixSeed(uint64_t a, uint64_t b);

}  // namespace cadre

#endif  // CADRE_KERNELS_ELEMENTWISE_ELEMENTWISE_H_
