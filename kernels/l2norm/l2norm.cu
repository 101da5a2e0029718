#include "kernels/common/check.h"
#include "kernels/common/head_rows.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/l2norm/l2norm.h"

namespace cadre {
namespace {

using head_rows::Dispatch;
using head_rows::kRows;
using head_rows::ShapeFor;
using head_rows::SumOfSquares;

constexpr char kOp[] = "l2norm";

template <typename T, int N>
__device__ __forceinline__ float ReciprocalNorm(const T* x, int lane, int64_t d,
                                                float eps) {
  return rsqrtf(SumOfSquares<T, N>(x, lane, d) + eps);
}

template <typename T, int N>
__global__ void ForwardKernel(const T* all_x, int64_t rows, int64_t d,
                              float eps, T* all_y) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const T* x = all_x + row * d;
  T* y = all_y + row * d;
  const float factor = ReciprocalNorm<T, N>(x, lane, d, eps);
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N];
    LoadVec<N>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= factor;
    StoreVec<N>(y + i, v);
  }
}

template <typename T, int N>
__global__ void BackwardKernel(const T* all_x, const T* all_dy, int64_t rows,
                               int64_t d, float eps, T* all_dx) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const T* x = all_x + row * d;
  const T* dy = all_dy + row * d;
  T* dx = all_dx + row * d;
  const float factor = ReciprocalNorm<T, N>(x, lane, d, eps);
  float dot = 0;
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N], g[N];
    LoadVec<N>(x + i, v);
    LoadVec<N>(dy + i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) dot += factor * v[j] * g[j];
  }
  const float along = WarpSum(dot) * factor;  // <y,dy> / nu
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N], g[N];
    LoadVec<N>(x + i, v);
    LoadVec<N>(dy + i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = factor * (g[j] - along * v[j]);
    StoreVec<N>(dx + i, g);
  }
}

}  // namespace

absl::Status L2NormForwardCuda(const Exec& exec,
                               const L2NormForwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  return Dispatch(args.x.dtype(), d, Aligned16(args.x.raw(), args.y.raw()),
                  [&](auto zero, auto n) {
                    using T = decltype(zero);
                    return Launch(kOp, exec, ShapeFor(rows),
                                  ForwardKernel<T, n()>, args.x.data<T>(), rows,
                                  d, args.eps, args.y.data<T>());
                  });
}

absl::Status L2NormBackwardCuda(const Exec& exec,
                                const L2NormBackwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  return Dispatch(
      args.x.dtype(), d, Aligned16(args.x.raw(), args.dy.raw(), args.dx.raw()),
      [&](auto zero, auto n) {
        using T = decltype(zero);
        return Launch(kOp, exec, ShapeFor(rows), BackwardKernel<T, n()>,
                      args.x.data<T>(), args.dy.data<T>(), rows, d, args.eps,
                      args.dx.data<T>());
      });
}

}  // namespace cadre
