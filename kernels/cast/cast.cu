// Memory-bound: 8 elements a thread and turn where both ends are aligned.
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"

namespace cadre {
namespace {

constexpr int kBlock = 256, kVector = 8;

template <typename From, typename To>
__global__ void CastKernel(const From* from, To* to, int64_t n, bool aligned) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread =
      static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t vectors = aligned ? n / kVector : 0;
  for (int64_t i = thread; i < vectors; i += stride) {
    float low[4], high[4];
    LoadVec<4>(from + i * kVector, low);
    LoadVec<4>(from + i * kVector + 4, high);
    StoreVec<4>(to + i * kVector, low);
    StoreVec<4>(to + i * kVector + 4, high);
  }
  for (int64_t i = vectors * kVector + thread; i < n; i += stride) {
    to[i] = FromFloat<To>(ToFloat(from[i]));
  }
}

}  // namespace

absl::Status CastCuda(const Exec& exec, const Tensor& from, const Tensor& to) {
  const int64_t n = from.num_elements();
  return DispatchCuda(from.dtype(), [&](auto a) {
    return DispatchCuda(to.dtype(), [&](auto b) {
      using From = decltype(a);
      using To = decltype(b);
      const From* source = from.data<From>();
      To* target = to.data<To>();
      return Launch(
          "cast", exec,
          {.grid = dim3(GridFor(n, kBlock * kVector)), .block = dim3(kBlock)},
          CastKernel<From, To>, source, target, n, Aligned16(source, target));
    });
  });
}

}  // namespace cadre
