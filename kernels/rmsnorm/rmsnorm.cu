#include "kernels/common/check.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/rmsnorm/rmsnorm.h"

namespace cadre {
namespace {

constexpr char kOp[] = "rmsnorm";

// The factor of xhat in column i.
struct Weight {
  const float* w;  // null = ones
  float offset;
  __device__ float operator()(int64_t i) const {
    return w == nullptr ? 1.0f : offset + w[i];
  }
};

// A row belongs to `kGroup` threads: a warp for heads, a block for hidden rows.
// Rows are read N elements at a time.
template <int kGroup>
__device__ __forceinline__ float GroupSum(float x) {
  if constexpr (kGroup == 32) return WarpSum(x);
  return BlockSum(x);
}

template <typename T, int N, int kGroup>
__global__ void ForwardKernel(const T* __restrict__ all_x, Weight w,
                              int64_t rows, int64_t d, float eps, T* all_y,
                              float* rstd) {
  constexpr int kRows = kGroup == 32 ? 4 : 1;  // rows of a block
  const int lane = threadIdx.x % kGroup;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / kGroup;
  if (row >= rows) return;  // whole groups: the barriers below are safe
  const T* x = all_x + row * d;
  T* y = all_y + row * d;
  float squares = 0;
  for (int64_t i = lane * N; i < d; i += kGroup * N) {
    float v[N];
    LoadVec<N>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += v[j] * v[j];
  }
  const float rho = rsqrtf(GroupSum<kGroup>(squares) / float(d) + eps);
  if (rstd != nullptr && lane == 0) rstd[row] = rho;
  for (int64_t i = lane * N; i < d; i += kGroup * N) {
    float v[N];
    LoadVec<N>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = rho * v[j] * w(i + j);
    StoreVec<N>(y + i, v);
  }
}

template <typename T, int N, int kGroup>
__global__ void BackwardKernel(const T* __restrict__ all_x, Weight w,
                               const float* __restrict__ rstd, const T* all_dy,
                               int64_t rows, int64_t d, bool accumulate,
                               T* all_dx) {
  constexpr int kRows = kGroup == 32 ? 4 : 1;
  const int lane = threadIdx.x % kGroup;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / kGroup;
  if (row >= rows) return;
  const T* x = all_x + row * d;
  const T* dy = all_dy + row * d;
  T* dx = all_dx + row * d;
  const float rho = rstd[row];
  float dot = 0;
  for (int64_t i = lane * N; i < d; i += kGroup * N) {
    float v[N], g[N];
    LoadVec<N>(x + i, v);
    LoadVec<N>(dy + i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) dot += w(i + j) * g[j] * v[j];
  }
  // mean(u xhat) times the rho of xhat.
  const float along = GroupSum<kGroup>(dot) * rho * rho / float(d);
  for (int64_t i = lane * N; i < d; i += kGroup * N) {
    float v[N], g[N], out[N] = {};
    LoadVec<N>(x + i, v);
    LoadVec<N>(dy + i, g);
    if (accumulate) LoadVec<N>(dx + i, out);
#pragma unroll
    for (int j = 0; j < N; ++j)
      out[j] += rho * (w(i + j) * g[j] - along * v[j]);
    StoreVec<N>(dx + i, out);
  }
}

// One term of dw.
template <typename T>
struct WeightTerm {
  const T* x;
  const T* dy;
  const float* rstd;
  int64_t d;
  __device__ float operator()(int64_t r, int64_t c) const {
    return ToFloat(dy[r * d + c]) * rstd[r] * ToFloat(x[r * d + c]);
  }
};

// Calls fn(vector width, threads of a row) as constants.
template <typename T, typename Fn>
absl::Status DispatchRow(int64_t d, bool aligned, Fn&& fn) {
  const bool vector = aligned && d % kVec<T> == 0;
  const bool warp = d <= 512;
  auto group = [&](auto n) {
    return warp ? fn(n, std::integral_constant<int, 32>{})
                : fn(n, std::integral_constant<int, 256>{});
  };
  return vector ? group(std::integral_constant<int, kVec<T>>{})
                : group(std::integral_constant<int, 1>{});
}

LaunchShape ShapeFor(int64_t rows, int group) {
  return group == 32
             ? LaunchShape{.grid = dim3(unsigned((rows + 3) / 4)), .block = 128}
             : LaunchShape{.grid = dim3(unsigned(rows)), .block = 256};
}

}  // namespace

absl::Status RmsNormForwardCuda(const Exec& exec,
                                const RmsNormForwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  const Weight w{args.w.data<float>(), args.unit_offset ? 1.0f : 0.0f};
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return DispatchRow<T>(
        d, Aligned16(args.x.raw(), args.y.raw()), [&](auto n, auto group) {
          return Launch(kOp, exec, ShapeFor(rows, group),
                        ForwardKernel<T, n(), group()>, args.x.data<T>(), w,
                        rows, d, args.eps, args.y.data<T>(),
                        args.rstd.data<float>());
        });
  });
}

absl::Status RmsNormBackwardCuda(const Exec& exec,
                                 const RmsNormBackwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  const Weight w{args.w.data<float>(), args.unit_offset ? 1.0f : 0.0f};
  const float* const rstd = args.rstd.data<float>();
  return DispatchCuda(args.x.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    const T* const x = args.x.data<T>();
    const T* const dy = args.dy.data<T>();
    if (args.dw.present() && rows > 0) {  // before dx, which may replace dy
      const absl::Status status =
          SumRows(kOp, exec, rows, d, /*accumulate=*/true,
                  args.dw.data<float>(), WeightTerm<T>{x, dy, rstd, d});
      if (!status.ok()) return status;
    }
    return DispatchRow<T>(
        d, Aligned16(x, dy, args.dx.raw()), [&](auto n, auto group) {
          return Launch(kOp, exec, ShapeFor(rows, group),
                        BackwardKernel<T, n(), group()>, x, w, rstd, dy, rows,
                        d, args.accumulate_dx, args.dx.data<T>());
        });
  });
}

}  // namespace cadre
