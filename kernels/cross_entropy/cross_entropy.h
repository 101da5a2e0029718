#ifndef CADRE_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_
#define CADRE_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_

// The loss of next-token prediction, from logits or from hidden states. T
// tokens, D hidden, Nv vocabulary, B tokens of a block. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// A row with this target counts nowhere and gets a zero gradient.
inline constexpr int32_t kIgnoreTarget = -100;

struct CrossEntropyArgs {
  Tensor logits;    // [T,Nv]
  Tensor targets;   // i32 [T], in [0,Nv) or kIgnoreTarget
  Tensor loss_sum;  // f64 [1], added to: sum of logsumexp(z) - z[target]
  // Overwrite logits with inv_count (softmax - onehot), zero for ignored rows.
  bool gradient = false;
  double inv_count = 1.0;
};

// f32 or f64 on the CPU; the loss is summed in double, in row order. f32 or
// bf16 on CUDA, where each row's loss is rounded to a multiple of 2^-24: sums
// below 2^29 are then exact in double, so that they need no order.
// The largest logit is taken out first, so any finite logits are safe.
// Determinism: bitwise. T may be 0; Nv >= 1. INVALID_ARGUMENT for a target
// outside the vocabulary (CPU).
absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args);

struct LinearCrossEntropyArgs {
  Tensor x;        // [T,D], after the final norm
  Tensor head;     // [Nv,D]
  Tensor targets;  // i32 [T]
  // [B,Nv], B >= 1: the only logits that are held. On CUDA f32 beside bf16 x is
  // allowed too: the loss then comes from logits that were never rounded.
  Tensor workspace;
  double inv_count = 1.0;
  Tensor loss_sum;  // f64 [1], added to
  Tensor dx;        // [T,D], overwritten; optional
  Tensor dhead;     // [Nv,D], added to; optional
  Tensor logits;    // [T,Nv], overwritten; optional (tests, evaluation)
};

// logits = x head^T in blocks of B tokens; then as CrossEntropy; then
// dx = dlogits head and dhead += dlogits^T x. Without dx and dhead only the
// loss is computed. The result does not depend on B, but for the order of the
// sums in dhead.
// dtypes: x, head, workspace, dx, dhead, logits alike, f32 or f64 on the CPU;
// f32 or bf16 on CUDA, with dhead in f32.
// Aliasing: none. Cost: 2 T D Nv FLOPs for each of the products wanted.
absl::Status LinearCrossEntropy(const Exec& exec,
                                const LinearCrossEntropyArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_
