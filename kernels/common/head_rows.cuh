#ifndef CADRE_KERNELS_COMMON_HEAD_ROWS_CUH_
#define CADRE_KERNELS_COMMON_HEAD_ROWS_CUH_

// What ops over rows of one head's width share: a warp a row, its sum of
// squares, the launch and the choice of the vector width. Device code only.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"

namespace cadre::head_rows {

constexpr int kRows = 4;  // of a block, a warp each

inline LaunchShape ShapeFor(int64_t rows) {
  return {.grid = unsigned((rows + kRows - 1) / kRows), .block = 32 * kRows};
}

// The same on every lane, in an order that depends on d and N only.
template <typename T, int N>
__device__ __forceinline__ float SumOfSquares(const T* x, int lane, int64_t d) {
  float squares = 0;
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N];
    LoadVec<N>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += v[j] * v[j];
  }
  return WarpSum(squares);
}

// fn(zero of the element type, elements a lane reads at once).
template <typename Fn>
absl::Status Dispatch(DType dtype, int64_t d, bool aligned, Fn&& fn) {
  return DispatchCuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    // Heads are narrow: 8 bytes a lane keep the whole warp at work.
    if (aligned && d % 4 == 0 && d <= 128)
      return fn(zero, std::integral_constant<int, 4>{});
    return aligned && d % kVec<T> == 0
               ? fn(zero, std::integral_constant<int, kVec<T>>{})
               : fn(zero, std::integral_constant<int, 1>{});
  });
}

}  // namespace cadre::head_rows

#endif  // CADRE_KERNELS_COMMON_HEAD_ROWS_CUH_
