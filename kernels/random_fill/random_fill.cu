// A thread makes the pairs i, i + stride, ...; memory-bound on writes.
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/random_fill/random_fill.h"

namespace cadre {
namespace {

constexpr int kBlock = 256;

__device__ uint64_t Hash(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

template <typename T>
__global__ void RandomFillKernel(T* x, int64_t n, float deviation,
                                 uint64_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t pair = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; 2 * pair < n; pair += stride) {
    const uint64_t h = Hash(seed, static_cast<uint64_t>(pair));
    const float u = static_cast<float>((h >> 40) + 1) * 0x1p-24f;
    const float v = static_cast<float>((h >> 8) & 0xFFFFFF) * 0x1p-24f;
    const float radius = deviation * sqrtf(-2 * logf(u));
    float s, c;
    sincospif(2 * v, &s, &c);
    if (2 * pair + 1 < n) {
      const float values[2] = {radius * c, radius * s};
      StoreVec<2>(x + 2 * pair, values);
    } else {
      x[2 * pair] = FromFloat<T>(radius * c);
    }
  }
}

}  // namespace

absl::Status RandomFillCuda(const Exec& exec, const RandomFillArgs& args) {
  const int64_t n = args.x.num_elements();
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(
        "random_fill", exec,
        {.grid = dim3(GridFor((n + 1) / 2, kBlock)), .block = dim3(kBlock)},
        RandomFillKernel<T>, args.x.data<T>(), n,
        static_cast<float>(args.deviation), args.seed);
  });
}

}  // namespace cadre
