#ifndef CADRE_KERNELS_EMBEDDING_EMBEDDING_H_
#define CADRE_KERNELS_EMBEDDING_EMBEDDING_H_

// Token embedding. T tokens, V vocabulary, D hidden. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct EmbeddingForwardArgs {
  Tensor ids;    // i32 [T], in [0,V)
  Tensor table;  // [V,D]
  Tensor y;      // [T,D] = table[ids]
};
// f32 or f64 on the CPU, f32 or bf16 on CUDA. T may be 0. INVALID_ARGUMENT
// names the first id outside the table (CPU). Determinism: bitwise.
absl::Status EmbeddingForward(const Exec& exec,
                              const EmbeddingForwardArgs& args);

struct EmbeddingBackwardArgs {
  Tensor ids;     // i32 [T]
  Tensor dy;      // [T,D]
  Tensor dtable;  // [V,D], added to; as dy on the CPU, f32 on CUDA
  // This row never gets a gradient; -1: none.
  int64_t pad_id = -1;
};
// dtable[ids[t]] += dy[t], in token order: bitwise deterministic.
absl::Status EmbeddingBackward(const Exec& exec,
                               const EmbeddingBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_EMBEDDING_EMBEDDING_H_
