#ifndef CADRE_KERNELS_SPARSE_INDEX_SPARSE_INDEX_H_
#define CADRE_KERNELS_SPARSE_INDEX_SPARSE_INDEX_H_

// Which keys each query of a sparse attention layer reads (DSA): the token
// indexer, and the gated pool indexer when kpool > 0. Forward only: the choice
// carries no gradient. T packed tokens, Hi index heads of width Di, P pool
// size, W width of an output row. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Keys a query can have at most: topk tokens, and with pools the incomplete
// tail of at most kpool - 1 tokens.
constexpr int64_t IndexWidth(int64_t topk, int64_t kpool) {
  return kpool > 0 ? topk + kpool - 1 : topk;
}

struct SparseIndexArgs {
  Tensor q;            // [T,Hi,Di], after rope
  Tensor k;            // [T,Di], after LayerNorm and rope
  Tensor head_weight;  // [T,Hi], omega: already times Hi^-1/2
  Tensor cu_seqlens;   // i32 [docs + 1]
  int64_t topk = 0;    // keys per query; a multiple of kpool if that is > 0
  int64_t kpool = 0;   // P; 0 = single tokens
  // Both or neither, needed when kpool > 0.
  Tensor pool_gate;  // [T,Di]
  Tensor pool_ape;   // [P,Di]
  // Written. Rows: document-relative key indices, ascending, -1 behind the last
  // valid one. W = IndexWidth(topk, kpool).
  Tensor selected;   // i32 [T,W]
  Tensor num_valid;  // i32 [T]
};

// Tokens, for query t and key s <= t of the same document:
//   score[t,s] = sum_h omega[t,h] max(0, Di^-1/2 <q[t,h], k[s]>)
// and the min(topk, t+1) best s are kept.
//
// Pools: the complete runs of P tokens from the document's first token on. Per
// pool and channel a = softmax over its tokens j of (pool_gate + pool_ape[j]),
// kbar = sum_j a_j k_j, scored like a key. A pool is eligible once its last
// token is visible; the topk/P best are expanded to tokens, and the tail of
// (t+1) mod P tokens up to t is always added.
//
// Order: score descending, then the lower key (pool) index; -0 equals +0.
// Sums run over heads in index order and over channels in one order for all
// keys, in the scalar type: equal keys tie exactly. NaN scores come last.
// Padding tokens get num_valid 0. T may be 0; Hi, Di, topk >= 1.
// dtypes: q, k, head_weight, pool_* alike, f32 or f64 on the CPU.
// Workspace (CPU): one row of scores for each running query and the pooled
// keys of one document. Determinism: bitwise.
absl::Status SparseIndex(const Exec& exec, const SparseIndexArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_SPARSE_INDEX_SPARSE_INDEX_H_
