#ifndef CADRE_KERNELS_ATTENTION_ATTENTION_H_
#define CADRE_KERNELS_ATTENTION_ATTENTION_H_

// Causal softmax attention inside documents, with separate queries, keys and
// values: grouped-query attention, and MLA in its expanded (multi-head) form.
// With a list of selected keys per query it is sparse attention (DSA).
//
// T packed tokens, n query heads, n_kv key/value heads, Dqk and Dv their
// widths, W the width of a selection row. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct AttentionForwardArgs {
  Tensor q;           // [T,n,Dqk]
  Tensor k;           // [T,n_kv,Dqk], n_kv divides n
  Tensor v;           // [T,n_kv,Dv]
  Tensor cu_seqlens;  // i32 [docs + 1]
  double scale = 1.0;
  // Optional, both or neither, as written by kernels/sparse_index. Document-
  // relative key indices in [0, own position], ascending; the first
  // num_valid[t] of row t count.
  Tensor selected;   // i32 [T,W]
  Tensor num_valid;  // i32 [T]
  Tensor o;          // [T,n,Dv]
  Tensor lse;        // [T,n], log sum exp of the scaled scores
};

struct AttentionBackwardArgs {
  Tensor q, k, v, cu_seqlens;  // as given to the forward
  double scale = 1.0;
  Tensor selected, num_valid;  // likewise
  Tensor o, lse;               // as the forward wrote them
  Tensor d_o;                  // [T,n,Dv]
  Tensor dq;                   // as q, overwritten
  Tensor dk;  // as k, overwritten; sums the heads that share it
  Tensor dv;  // as v, overwritten
};

// For token t at position p of its document, head h, and the key/value head
// g = floor(h n_kv / n) that it reads:
//   P[t,s] = softmax over s of scale <q[t,h], k[s,g]>, s in A(t)
//   o[t,h] = sum_s P[t,s] v[s,g] ;  lse[t,h] = log sum_s exp(score[t,s])
// A(t) = tokens 0..p of the document, or the selected ones of these.
//
// An empty row (num_valid 0) and tokens at or behind cu_seqlens.back() give
// o = 0 and lse = -inf. T = 0 and empty documents are allowed; Dqk, Dv >= 1.
//
// dtypes: q, k, v, o of one dtype, f32 or f64 on the CPU with sums in that
// type; bf16 or f32 on CUDA with f32 sums (probabilities are rounded to bf16 as
// operands); lse of the same dtype (f32 on CUDA). Rows are contiguous.
// Limits on CUDA: Dqk and Dv at most 256.
// Aliasing: outputs overlap nothing.
// Determinism: bitwise, whatever the number of threads.
// Workspace (CPU): a block of score rows for each running (document, head),
// never documents x heads of them at once.
// Cost: 2 n (Dqk + Dv) FLOPs for each (query, allowed key).
// Errors: INVALID_ARGUMENT names the shape, or a selected index that lies
// outside [0, position] (CPU only: on CUDA that is a promise of the caller).
absl::Status AttentionForward(const Exec& exec,
                              const AttentionForwardArgs& args);

// With P made again from lse:
//   Delta[t] = <do[t], o[t]> ;  dS = P (dO V^T - Delta)
//   dQ = scale dS K ;  dK = scale dS^T Q ;  dV = P^T dO
// (On CUDA, Delta lies in dq between the kernels, so no workspace is needed.)
// The selection carries no gradient. Gradients of padding tokens are 0. The
// sums over queries run in token order, over heads in head order.
absl::Status AttentionBackward(const Exec& exec,
                               const AttentionBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ATTENTION_ATTENTION_H_
