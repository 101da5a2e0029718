#ifndef CADRE_KERNELS_ATTENTION_RESIDUAL_ATTENTION_RESIDUAL_H_
#define CADRE_KERNELS_ATTENTION_RESIDUAL_ATTENTION_RESIDUAL_H_

// Attention residuals (AttnRes, kimi_k3): per token, a softmax mix of earlier
// residual sums. T tokens, H hidden, N rows of the bank and the current sum
// together. Stateless.

#include <vector>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Most rows of a mix on CUDA: the bank of a model with twice as many blocks of
// residuals as kimi_k3.
inline constexpr int kMaxAttentionResidualRows = 32;

struct AttentionResidualForwardArgs {
  std::vector<Tensor> rows;  // N times [T,H]: the bank in order, then s
  Tensor norm_weight;        // [H]
  Tensor proj;               // [H]
  double eps = 1e-5;
  Tensor y;  // [T,H]
  // Kept for the backward.
  Tensor p;     // [T,N]
  Tensor rstd;  // [T,N]
};

// score_i = <RMS(row_i; norm_weight, eps), proj> ;  p = softmax over i
// y = sum_i p_i row_i, of the raw rows, in order.
//
// dtypes: one, f32 or f64, on the CPU. On CUDA rows and y f32 or bf16, all else
// f32, sums in f32; N at most kMaxAttentionResidualRows. N, H >= 1; T may be 0.
// y overlaps no row.
// Bitwise deterministic.
absl::Status AttentionResidualForward(const Exec& exec,
                                      const AttentionResidualForwardArgs& args);

struct AttentionResidualBackwardArgs {
  std::vector<Tensor> rows;
  Tensor norm_weight, proj, p, rstd;
  Tensor dy;  // [T,H]
  // N times [T,H], added to: a bank row collects gradient from every later
  // mix, and s goes on as the residual. Each optional; they overlap nothing.
  std::vector<Tensor> drows;
  // [H], added to; optional.
  Tensor dnorm_weight, dproj;
  // [T,N], as p: scratch of CUDA, not looked at on the CPU.
  Tensor slopes;
};

// dp_i = <dy, row_i> ;  dscore = p (dp - sum p dp)
// drow_i += p_i dy + RMS backward of dscore_i proj
absl::Status AttentionResidualBackward(
    const Exec& exec, const AttentionResidualBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ATTENTION_RESIDUAL_ATTENTION_RESIDUAL_H_
