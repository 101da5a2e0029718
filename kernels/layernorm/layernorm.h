#ifndef CADRE_KERNELS_LAYERNORM_LAYERNORM_H_
#define CADRE_KERNELS_LAYERNORM_LAYERNORM_H_

// LayerNorm over the last dimension, for the keys of the sparse-attention
// indexer. That indexer is never trained, so there is no backward.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct LayerNormForwardArgs {
  Tensor x;  // [...,D]
  Tensor w;  // [D]
  Tensor b;  // [D]
  Tensor y;  // as x; may be x itself
  double eps = 1e-6;
};

// y = (x - mean) / sqrt(var + eps) w + b, var = mean((x - mean)^2) (biased).
//
// Any number of rows, D >= 1 unless there are none. f32 or f64 on the CPU (w, b
// alike); bf16 with f32 w, b on CUDA. The variance is taken in a second pass
// over the centred row, so a large common offset loses no digits.
// Determinism: bitwise. Cost: one read and one write of x.
absl::Status LayerNormForward(const Exec& exec,
                              const LayerNormForwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_LAYERNORM_LAYERNORM_H_
