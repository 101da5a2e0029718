#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/elementwise/elementwise.h"

namespace cadre {
namespace {

constexpr char kOp[] = "elementwise";
constexpr int kBlock = 256;

__device__ __forceinline__ int64_t FirstItem() {
  return int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t Stride() {
  return int64_t(gridDim.x) * blockDim.x;
}

template <typename T, int N>
__global__ void AddKernel(const T* __restrict__ x, T* __restrict__ y,
                          int64_t items) {
  for (int64_t i = FirstItem(); i < items; i += Stride()) {
    float a[N], b[N];
    LoadVec<N>(x + i * N, a);
    LoadVec<N>(y + i * N, b);
#pragma unroll
    for (int j = 0; j < N; ++j) b[j] += a[j];
    StoreVec<N>(y + i * N, b);
  }
}

// `width` counts packs of N elements; so do the pitches and columns.
template <typename T, int N>
__global__ void CopyColumnsKernel(const T* __restrict__ src, int64_t src_pitch,
                                  T* __restrict__ dst, int64_t dst_pitch,
                                  int64_t rows, int64_t width,
                                  bool accumulate) {
  for (int64_t i = FirstItem(); i < rows * width; i += Stride()) {
    const int64_t row = i / width, column = i - row * width;
    const T* from = src + (row * src_pitch + column) * N;
    T* to = dst + (row * dst_pitch + column) * N;
    float v[N];
    LoadVec<N>(from, v);
    if (accumulate) {
      float old[N];
      LoadVec<N>(to, old);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += old[j];
    }
    StoreVec<N>(to, v);
  }
}

template <typename T, int N>
__global__ void GateForwardKernel(const T* x, const T* gate, T* y,
                                  int64_t items) {
  for (int64_t i = FirstItem(); i < items; i += Stride()) {
    float v[N], g[N];
    LoadVec<N>(x + i * N, v);
    LoadVec<N>(gate + i * N, g);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= device::Sigmoid(g[j]);
    StoreVec<N>(y + i * N, v);
  }
}

template <typename T, int N>
__global__ void GateBackwardKernel(const T* x, const T* gate, const T* dy,
                                   T* dx, T* dgate, int64_t items) {
  for (int64_t i = FirstItem(); i < items; i += Stride()) {
    float v[N], g[N], d[N], out[N];
    LoadVec<N>(x + i * N, v);
    LoadVec<N>(gate + i * N, g);
    LoadVec<N>(dy + i * N, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = device::Sigmoid(g[j]);
      out[j] = d[j] * s;
      g[j] = d[j] * v[j] * s * (1 - s);
    }
    StoreVec<N>(dx + i * N, out);
    StoreVec<N>(dgate + i * N, g);
  }
}

// One gate a row: a block walks the row.
template <typename T>
__global__ void RowGateForwardKernel(const T* x, const T* gate, T* y,
                                     int64_t width) {
  const int64_t row = blockIdx.x;
  const float s = device::Sigmoid(ToFloat(gate[row]));
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x)
    y[row * width + j] = FromFloat<T>(ToFloat(x[row * width + j]) * s);
}

template <typename T>
__global__ void RowGateBackwardKernel(const T* x, const T* gate, const T* dy,
                                      T* dx, T* dgate, int64_t width) {
  const int64_t row = blockIdx.x;
  const float s = device::Sigmoid(ToFloat(gate[row]));
  float sum = 0;
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    const float d = ToFloat(dy[row * width + j]);
    sum += d * ToFloat(x[row * width + j]);
    dx[row * width + j] = FromFloat<T>(d * s);
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dgate[row] = FromFloat<T>(sum * s * (1 - s));
}

__device__ __forceinline__ uint64_t MixSeedOnDevice(uint64_t a, uint64_t b) {
  uint64_t x = a + 0x9E3779B97F4A7C15ULL * (b + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

template <typename T, int N>
__global__ void DropoutKernel(const T* x, T* y, uint64_t seed, uint64_t bound,
                              float scale, bool accumulate, int64_t items) {
  for (int64_t i = FirstItem(); i < items; i += Stride()) {
    float v[N], out[N] = {};
    LoadVec<N>(x + i * N, v);
    if (accumulate) LoadVec<N>(y + i * N, out);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if ((MixSeedOnDevice(seed, i * N + j) >> 40) >= bound)
        out[j] += v[j] * scale;
    }
    StoreVec<N>(y + i * N, out);
  }
}

// Calls fn(zero of T, elements of one access) for n elements.
template <typename Fn>
absl::Status DispatchVector(DType dtype, bool vector, Fn&& fn) {
  return DispatchCuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    return vector ? fn(zero, std::integral_constant<int, kVec<T>>{})
                  : fn(zero, std::integral_constant<int, 1>{});
  });
}

bool Divides(int64_t n, DType dtype) { return n * SizeOf(dtype) % 16 == 0; }

LaunchShape ShapeFor(int64_t items) {
  return {.grid = GridFor(items, kBlock), .block = kBlock};
}

}  // namespace

absl::Status AddInPlaceCuda(const Exec& exec, const Tensor& x,
                            const Tensor& y) {
  const int64_t n = x.num_elements();
  return DispatchVector(
      x.dtype(), Divides(n, x.dtype()) && Aligned16(x.raw(), y.raw()),
      [&](auto zero, auto width) {
        using T = decltype(zero);
        const int64_t items = n / width();
        return Launch(kOp, exec, ShapeFor(items), AddKernel<T, width()>,
                      x.data<T>(), y.data<T>(), items);
      });
}

absl::Status CopyColumnsCuda(const Exec& exec, const CopyColumnsArgs& args) {
  const DType dtype = args.src.dtype();
  const int64_t src_pitch = args.src.num_elements() / args.rows;
  const int64_t dst_pitch = args.dst.num_elements() / args.rows;
  const bool vector =
      Divides(src_pitch, dtype) && Divides(dst_pitch, dtype) &&
      Divides(args.src_column, dtype) && Divides(args.dst_column, dtype) &&
      Divides(args.width, dtype) && Aligned16(args.src.raw(), args.dst.raw());
  return DispatchVector(dtype, vector, [&](auto zero, auto n) {
    using T = decltype(zero);
    const int64_t width = args.width / n();
    return Launch(kOp, exec, ShapeFor(args.rows * width),
                  CopyColumnsKernel<T, n()>,
                  args.src.data<T>() + args.src_column, src_pitch / n(),
                  args.dst.data<T>() + args.dst_column, dst_pitch / n(),
                  args.rows, width, args.accumulate);
  });
}

absl::Status SigmoidGateForwardCuda(const Exec& exec, const Tensor& x,
                                    const Tensor& gate, const Tensor& y) {
  const int64_t n = x.num_elements(), rows = gate.num_elements();
  if (n == 0) return absl::OkStatus();
  if (rows != n) {
    return DispatchCuda(x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      return Launch(kOp, exec, {.grid = unsigned(rows), .block = kBlock},
                    RowGateForwardKernel<T>, x.data<T>(), gate.data<T>(),
                    y.data<T>(), n / rows);
    });
  }
  return DispatchVector(
      x.dtype(),
      Divides(n, x.dtype()) && Aligned16(x.raw(), gate.raw(), y.raw()),
      [&](auto zero, auto width) {
        using T = decltype(zero);
        const int64_t items = n / width();
        return Launch(kOp, exec, ShapeFor(items), GateForwardKernel<T, width()>,
                      x.data<T>(), gate.data<T>(), y.data<T>(), items);
      });
}

absl::Status SigmoidGateBackwardCuda(const Exec& exec,
                                     const SigmoidGateBackwardArgs& args) {
  const int64_t n = args.x.num_elements(), rows = args.gate.num_elements();
  if (n == 0) return absl::OkStatus();
  if (rows != n) {
    return DispatchCuda(args.x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      return Launch(kOp, exec, {.grid = unsigned(rows), .block = kBlock},
                    RowGateBackwardKernel<T>, args.x.data<T>(),
                    args.gate.data<T>(), args.dy.data<T>(), args.dx.data<T>(),
                    args.dgate.data<T>(), n / rows);
    });
  }
  return DispatchVector(
      args.x.dtype(),
      Divides(n, args.x.dtype()) &&
          Aligned16(args.x.raw(), args.gate.raw(), args.dy.raw(), args.dx.raw(),
                    args.dgate.raw()),
      [&](auto zero, auto width) {
        using T = decltype(zero);
        const int64_t items = n / width();
        return Launch(kOp, exec, ShapeFor(items),
                      GateBackwardKernel<T, width()>, args.x.data<T>(),
                      args.gate.data<T>(), args.dy.data<T>(), args.dx.data<T>(),
                      args.dgate.data<T>(), items);
      });
}

absl::Status DropoutCuda(const Exec& exec, const DropoutArgs& args) {
  const int64_t n = args.x.num_elements();
  const uint64_t bound =
      static_cast<uint64_t>(args.probability * (int64_t{1} << 24));
  const float scale = static_cast<float>(1 / (1 - args.probability));
  return DispatchVector(
      args.x.dtype(),
      Divides(n, args.x.dtype()) && Aligned16(args.x.raw(), args.y.raw()),
      [&](auto zero, auto width) {
        using T = decltype(zero);
        const int64_t items = n / width();
        return Launch(kOp, exec, ShapeFor(items), DropoutKernel<T, width()>,
                      args.x.data<T>(), args.y.data<T>(), args.seed, bound,
                      scale, args.accumulate, items);
      });
}

}  // namespace cadre
