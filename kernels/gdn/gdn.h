#ifndef CADRE_KERNELS_GDN_GDN_H_
#define CADRE_KERNELS_GDN_GDN_H_

// Gated DeltaNet: the delta rule with one decay per value head, and key heads
// that may be shared by several value heads.
//
// Letters: T packed tokens, Hk key heads, Hv value heads (a multiple of Hk), K
// and V widths of keys and values.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// What forward and backward both read. "param" dtype: that of q on the CPU,
// f32 on CUDA.
struct GdnInputs {
  Tensor q;              // [T,Hk,K], L2-normalised (kernels/l2norm)
  Tensor k;              // [T,Hk,K], likewise
  Tensor v;              // [T,Hv,V]
  Tensor a;              // param [T,Hv], decay logits before dt_bias
  Tensor beta;           // param [T,Hv], logits of the write strength
  Tensor a_log;          // param [Hv]
  Tensor dt_bias;        // param [Hv]
  Tensor cu_seqlens;     // i32[docs+1]; host on the CPU, device on CUDA
  Tensor initial_state;  // param [docs,Hv,K,V]; absent = zeros
};

struct GdnForwardArgs {
  GdnInputs in;
  Tensor o;            // [T,Hv,V]
  Tensor final_state;  // param [docs,Hv,K,V], written; optional
  Tensor workspace;    // u8; CUDA only, GdnForwardWorkspaceBytes
};

struct GdnBackwardArgs {
  GdnInputs in;
  Tensor d_o;            // [T,Hv,V]
  Tensor d_final_state;  // param [docs,Hv,K,V]; absent = zeros
  // Overwritten.
  Tensor dq;     // [T,Hk,K], summed over the value heads of a key head
  Tensor dk;     // [T,Hk,K], likewise
  Tensor dv;     // [T,Hv,V]
  Tensor da;     // param [T,Hv]
  Tensor dbeta;  // param [T,Hv]
  // Added to; each optional.
  Tensor da_log;    // param [Hv]
  Tensor ddt_bias;  // param [Hv]
  // Overwritten; optional, needs no initial_state.
  Tensor d_initial_state;  // param [docs,Hv,K,V]
  Tensor workspace;        // u8; CUDA only, GdnBackwardWorkspaceBytes
};

// Value head h reads key head h / (Hv / Hk). Per value head, with S [K,V]
// starting at initial_state for each document, A = exp(a_log), b =
// sigmoid(beta):
//
//   g_t = -A softplus(a_t + dt_bias)                             (<= 0)
//   S <- exp(g_t) S ;  e_t = v_t - S^T k_t ;  S <- S + b_t k_t e_t^T ;
//   o_t = K^-1/2 S^T q_t
//
// Padding, empty sizes, aliasing, accumulation, determinism and cost as in
// kernels/kda/kda.h; on the CPU the backward is parallel over (document, key
// head).
absl::Status GdnForward(const Exec& exec, const GdnForwardArgs& args);
absl::Status GdnBackward(const Exec& exec, const GdnBackwardArgs& args);

// As KdaForwardWorkspaceBytes. `heads` are value
// heads; more key heads never need more.
int64_t GdnForwardWorkspaceBytes(int64_t tokens, int64_t heads,
                                 int64_t key_heads, int64_t docs);
int64_t GdnBackwardWorkspaceBytes(int64_t tokens, int64_t heads,
                                  int64_t key_heads, int64_t docs);

// The same for given inputs, whatever their dtype and widths; 0 on the CPU.
// bf16 with K and V of 64 or 128 is fast: a width of 64 is widened to 128 with
// zeros in the workspace, for all heads at once, and tensors are aligned to 16
// bytes. Anything else takes the slower generic kernels, K <= 256.
int64_t GdnForwardWorkspaceBytes(const Exec& exec, const GdnInputs& in);
int64_t GdnBackwardWorkspaceBytes(const Exec& exec, const GdnInputs& in);

}  // namespace cadre

#endif  // CADRE_KERNELS_GDN_GDN_H_
