#ifndef CADRE_KERNELS_COMMON_REDUCE_CUH_
#define CADRE_KERNELS_COMMON_REDUCE_CUH_

// Reductions within a warp and a block, in an order that depends only on the
// block's size: results are the same in every run. Device code.

#include <cmath>
#include <cstdint>

#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"

namespace cadre {

struct SumOp {
  __device__ float operator()(float a, float b) const { return a + b; }
  static constexpr float kIdentity = 0;
};
struct MaxOp {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  static constexpr float kIdentity = -INFINITY;
};

// Over groups of `Width` neighbouring lanes (a power of two); every lane gets
// the result. All lanes of the warp take part.
template <typename Op, int Width = 32>
__device__ __forceinline__ float WarpReduce(float x) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2)
    x = Op()(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}
template <int Width = 32>
__device__ __forceinline__ float WarpSum(float x) {
  return WarpReduce<SumOp, Width>(x);
}
template <int Width = 32>
__device__ __forceinline__ float WarpMax(float x) {
  return WarpReduce<MaxOp, Width>(x);
}

// Over a one-dimensional block whose size is a multiple of 32; every thread
// gets the result. All threads take part. Holds two barriers, so that it may be
// called again at once.
template <typename Op>
__device__ __forceinline__ float BlockReduce(float x) {
  __shared__ float partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  x = WarpReduce<Op>(x);
  if (warps == 1) return x;
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = WarpReduce<Op>(lane < warps ? partial[lane] : Op::kIdentity);
  __syncthreads();
  return x;
}
__device__ __forceinline__ float BlockSum(float x) {
  return BlockReduce<SumOp>(x);
}
__device__ __forceinline__ float BlockMax(float x) {
  return BlockReduce<MaxOp>(x);
}

// Sums over rows for gradients of small parameters: out[c] = sum over r in
// [0, rows) of fn(r, c), rows in a fixed order. Needs no workspace; a block
// owns 32 columns. Launch through SumRows below.
template <typename Fn>
__global__ void SumRowsKernel(Fn fn, int64_t rows, int64_t columns,
                              bool accumulate, float* out) {
  __shared__ float tile[32][33];
  const int64_t c = int64_t(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (c < columns)
    for (int64_t r = threadIdx.y; r < rows; r += 32) sum += fn(r, c);
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Warp w adds the 32 partial sums of column w.
  sum = WarpSum(tile[threadIdx.x][threadIdx.y]);
  const int64_t mine = int64_t(blockIdx.x) * 32 + threadIdx.y;
  if (threadIdx.x == 0 && mine < columns)
    out[mine] = accumulate ? out[mine] + sum : sum;
}

template <typename Fn>
absl::Status SumRows(absl::string_view op, const Exec& exec, int64_t rows,
                     int64_t columns, bool accumulate, float* out, Fn fn) {
  return Launch(
      op, exec,
      {.grid = dim3(unsigned((columns + 31) / 32)), .block = dim3(32, 32)},
      SumRowsKernel<Fn>, fn, rows, columns, accumulate, out);
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_REDUCE_CUH_
