#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_H_

// KDA and Gated DeltaNet on CUDA for every dtype and head width: the recurrence
// token by token in f32. It serves where the chunked kernels (bf16, widths of
// 128 or padded to that) do not apply: float32 runs, checks, and small heads.
// Private to kernels/{kda,gdn}. Stateless.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/delta_kernels.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre::linear_attention {

inline constexpr int64_t kGenericMaxKeyDim = 256;

// Names as in kernels/kda/kda.h and kernels/gdn/gdn.h. Exactly one of z (a
// decay for each key channel) and a (one for each value head) is present.
struct GenericInputs {
  Tensor q, k, v, z, a, beta, a_log, dt_bias, cu_seqlens, initial_state;
  bool bounded = false;
  float bound = 0;
};

struct GenericGradients {
  Tensor d_o, d_final_state;
  Tensor dq, dk, dv, dz, da, dbeta, da_log, ddt_bias, d_initial_state;
};

using cadre::DeltaKernels;

// What runs on CUDA: run.cuh (over pad.cuh), or what is declared below.
inline DeltaKernels KernelsFor(const Tensor& q, const Tensor& v) {
  return q.dtype() == DType::kBF16 ? DeltaKernelsFor(q.dim(2), v.dim(2))
                                   : DeltaKernels::kGeneric;
}

// INVALID_ARGUMENT for K above kGenericMaxKeyDim. Needs no workspace.
absl::Status GenericForward(absl::string_view op, const Exec& exec,
                            const GenericInputs& in, const Tensor& o,
                            const Tensor& final_state);

// `workspace` holds GenericBackwardBytes, 256-byte aligned.
absl::Status GenericBackward(absl::string_view op, const Exec& exec,
                             const GenericInputs& in,
                             const GenericGradients& gradients,
                             const Tensor& workspace);

// Where things lie in the workspace, in floats.
struct GenericLayout {
  int64_t dq, dk, dlog;  // [T,H,K], sums over value columns
  int64_t dbeta;         // [T,H]
  int64_t starts;        // states at the start of each chunk of 64 tokens
  int64_t decayed;       // states within a chunk
  int64_t floats;
};

// Rows of a state that a lane holds (32 lanes share the key channels).
inline int GenericRows(int64_t key_dim) {
  return key_dim <= 32 ? 1 : key_dim <= 128 ? 4 : 8;
}

inline GenericLayout LayOutGeneric(int64_t tokens, int64_t heads,
                                   int64_t key_dim) {
  GenericLayout at{};
  const auto take = [&](int64_t n) {
    const int64_t begin = at.floats;
    at.floats += (n + 63) / 64 * 64;
    return begin;
  };
  const int64_t state = GenericRows(key_dim) * 32 * 32;  // of 32 columns
  at.dq = take(tokens * heads * key_dim);
  at.dk = take(tokens * heads * key_dim);
  at.dlog = take(tokens * heads * key_dim);
  at.dbeta = take(tokens * heads);
  at.starts = take((tokens / 64 + 1) * heads * state);
  at.decayed = take(std::min<int64_t>(tokens, 64) * heads * state);
  return at;
}

// Monotone in every argument. `heads` are value heads.
inline int64_t GenericBackwardBytes(int64_t tokens, int64_t heads,
                                    int64_t key_dim) {
  return LayOutGeneric(tokens, heads, key_dim).floats * 4;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_H_
