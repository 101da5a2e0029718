#ifndef CADRE_KERNELS_COMMON_DELTA_KERNELS_H_
#define CADRE_KERNELS_COMMON_DELTA_KERNELS_H_

// Which kernels of KDA and Gated DeltaNet run on a GPU, for the ops that choose
// and for the plan, which counts what they need. Pure.

#include <cstdint>

namespace cadre {

enum class DeltaKernels {
  kChunked,  // chunks on tensor cores, on the tensors as they are
  kPadded,   // the same on copies with zero columns up to kChunkedHeadDim
  kGeneric,  // token by token
};

inline constexpr int64_t kChunkedHeadDim = 128;

// For bfloat16 heads of these widths; other dtypes take the generic ones.
constexpr DeltaKernels DeltaKernelsFor(int64_t key_dim, int64_t value_dim) {
  const auto fits = [](int64_t dim) {
    return dim == kChunkedHeadDim || 2 * dim == kChunkedHeadDim;
  };
  if (!fits(key_dim) || !fits(value_dim)) return DeltaKernels::kGeneric;
  return key_dim == kChunkedHeadDim && value_dim == kChunkedHeadDim
             ? DeltaKernels::kChunked
             : DeltaKernels::kPadded;
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_DELTA_KERNELS_H_
