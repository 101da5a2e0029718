#ifndef CADRE_KERNELS_KDA_KDA_H_
#define CADRE_KERNELS_KDA_KDA_H_

// Kimi Delta Attention: the delta rule with a decay for each key channel.
//
// Letters: T packed tokens, H heads, K and V widths of keys and values.

#include <optional>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// What forward and backward both read. "param" dtype: that of q on the CPU,
// f32 on CUDA.
struct KdaInputs {
  Tensor q;           // [T,H,K], L2-normalised (kernels/l2norm)
  Tensor k;           // [T,H,K], likewise
  Tensor v;           // [T,H,V]
  Tensor z;           // [T,H,K], decay logits before dt_bias
  Tensor beta;        // param [T,H], logits of the write strength
  Tensor a_log;       // param [H]
  Tensor dt_bias;     // param [H*K]
  Tensor cu_seqlens;  // i32[docs+1]; host on the CPU, device on CUDA
  // Lower bound L < 0 of the log-decay; none = softplus gate.
  std::optional<double> lower_bound;
  Tensor initial_state;  // param [docs,H,K,V]; absent = zeros
};

struct KdaForwardArgs {
  KdaInputs in;
  Tensor o;            // [T,H,V]
  Tensor final_state;  // param [docs,H,K,V], written; optional
  Tensor workspace;    // u8; CUDA only, KdaForwardWorkspaceBytes
};

struct KdaBackwardArgs {
  KdaInputs in;
  Tensor d_o;            // [T,H,V]
  Tensor d_final_state;  // param [docs,H,K,V]; absent = zeros
  // Overwritten.
  Tensor dq;     // [T,H,K]
  Tensor dk;     // [T,H,K]
  Tensor dv;     // [T,H,V]
  Tensor dz;     // [T,H,K]
  Tensor dbeta;  // param [T,H]
  // Added to; each optional.
  Tensor da_log;    // param [H]
  Tensor ddt_bias;  // param [H*K]
  // Overwritten; optional, needs no initial_state.
  Tensor d_initial_state;  // param [docs,H,K,V]
  Tensor workspace;        // u8; CUDA only, KdaBackwardWorkspaceBytes
};

// Per head, with S [K,V] starting at initial_state for each document and
// A = exp(a_log), zb = z + dt_bias, b = sigmoid(beta):
//
//   g_t = L sigmoid(A zb_t)   or   g_t = -A softplus(zb_t)      (<= 0)
//   S <- diag(exp g_t) S ;  e_t = v_t - S^T k_t ;  S <- S + b_t k_t e_t^T ;
//   o_t = K^-1/2 S^T q_t
//
// softplus is the identity above 20. Rows from cu_seqlens[docs] on are padding:
// o = 0 and inputs there are not read. T, H, V and docs may be 0, documents
// may be empty (their state passes through), K >= 1.
// Aliasing: outputs overlap no input and no other output.
// Accumulation and state: the scalar type on the CPU, f32 on CUDA.
// Determinism: bitwise, whatever the thread pool.
// Cost on the CPU: about 7 K V FLOPs a token and head forward, 25 K V
// backward; the backward allocates, per (document, head) in work, one state
// for every 64 tokens of the document and 64 more. Parallel over (document,
// head).
absl::Status KdaForward(const Exec& exec, const KdaForwardArgs& args);

// Gradients of the above; states are computed again from `in`, nothing else
// has to be kept. Padding rows get zero gradients.
absl::Status KdaBackward(const Exec& exec, const KdaBackwardArgs& args);

// What `workspace` has to hold on CUDA, 256-byte aligned; its contents before
// and after a call mean nothing. Monotone in tokens and documents. For
// bf16, K = V = 128 and tensors aligned to 16 bytes.
int64_t KdaForwardWorkspaceBytes(int64_t tokens, int64_t heads, int64_t docs);
int64_t KdaBackwardWorkspaceBytes(int64_t tokens, int64_t heads, int64_t docs);

// The same for given inputs, whatever their dtype and widths; 0 on the CPU.
// bf16 with K and V of 64 or 128 is fast: a width of 64 is widened to 128 with
// zeros in the workspace, for all heads at once, and tensors are aligned to 16
// bytes. Anything else takes the slower generic kernels, K <= 256.
int64_t KdaForwardWorkspaceBytes(const Exec& exec, const KdaInputs& in);
int64_t KdaBackwardWorkspaceBytes(const Exec& exec, const KdaInputs& in);

}  // namespace cadre

#endif  // CADRE_KERNELS_KDA_KDA_H_
