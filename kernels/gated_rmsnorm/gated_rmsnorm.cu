#include "kernels/common/check.h"
#include "kernels/common/head_rows.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/gated_rmsnorm/gate_rows.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

namespace cadre {
namespace {

using head_rows::Dispatch;
using head_rows::kRows;
using head_rows::ShapeFor;
using head_rows::SumOfSquares;

constexpr char kOp[] = "gated_rmsnorm";

__device__ __forceinline__ float Activate(bool silu, float gate) {
  const float s = device::Sigmoid(gate);
  return silu ? gate * s : s;
}

template <typename T, int N>
__device__ __forceinline__ float ReciprocalRms(const T* x, int lane, int64_t d,
                                               float eps) {
  return rsqrtf(SumOfSquares<T, N>(x, lane, d) / float(d) + eps);
}

template <typename T, int N>
__global__ void ForwardKernel(const T* all_x, const T* all_gate,
                              GateRows gate_at, const float* __restrict__ w,
                              int64_t rows, int64_t d, float eps, bool silu,
                              T* all_y) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const T* x = all_x + row * d;
  const T* gate = all_gate + gate_at(row);
  const float rho = ReciprocalRms<T, N>(x, lane, d, eps);
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N], g[N];
    LoadVec<N>(x + i, v);
    LoadVec<N>(gate + i, g);
#pragma unroll
    for (int j = 0; j < N; ++j)
      v[j] = w[i + j] * (rho * v[j]) * Activate(silu, g[j]);
    StoreVec<N>(all_y + row * d + i, v);
  }
}

template <typename T, int N>
__global__ void BackwardKernel(const T* all_x, const T* all_gate,
                               GateRows gate_at, const float* __restrict__ w,
                               const T* all_dy, int64_t rows, int64_t d,
                               float eps, bool silu, T* all_dx, T* all_dgate) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t at = row * d, gate = gate_at(row);
  const float rho = ReciprocalRms<T, N>(all_x + at, lane, d, eps);
  float dot = 0;
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N], g[N], dy[N];
    LoadVec<N>(all_x + at + i, v);
    LoadVec<N>(all_gate + gate + i, g);
    LoadVec<N>(all_dy + at + i, dy);
#pragma unroll
    for (int j = 0; j < N; ++j)
      dot += w[i + j] * dy[j] * Activate(silu, g[j]) * v[j];
  }
  const float along = WarpSum(dot) * rho * rho / float(d);
  for (int64_t i = lane * N; i < d; i += 32 * N) {
    float v[N], g[N], dy[N];
    LoadVec<N>(all_x + at + i, v);
    LoadVec<N>(all_gate + gate + i, g);
    LoadVec<N>(all_dy + at + i, dy);  // before dx and dgate, which may be dy
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = device::Sigmoid(g[j]);
      const float act = silu ? g[j] * s : s;
      const float slope = silu ? s * (1 + g[j] * (1 - s)) : s * (1 - s);
      const float scaled = w[i + j] * dy[j];
      dy[j] = rho * (scaled * act - along * v[j]);
      g[j] = scaled * rho * v[j] * slope;
    }
    StoreVec<N>(all_dx + at + i, dy);
    StoreVec<N>(all_dgate + gate + i, g);
  }
}

// dw in a fixed order without workspace: a block takes a slice of 32 columns
// and keeps a warp for each row it looks at.
template <typename T>
__global__ void WeightKernel(const T* x, const T* gate, GateRows gate_at,
                             const T* dy, int64_t rows, int64_t d, float eps,
                             bool silu, float* dw) {
  __shared__ float tile[32][33];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t column = int64_t(blockIdx.x) * 32 + lane;
  float sum = 0;
  for (int64_t r = warp; r < rows; r += 32) {
    const float rho = ReciprocalRms<T, 1>(x + r * d, lane, d, eps);
    if (column >= d) continue;
    const int64_t at = r * d + column;
    sum += ToFloat(dy[at]) * rho * ToFloat(x[at]) *
           Activate(silu, ToFloat(gate[gate_at(r) + column]));
  }
  tile[warp][lane] = sum;
  __syncthreads();
  sum = WarpSum(tile[lane][warp]);
  const int64_t mine = int64_t(blockIdx.x) * 32 + warp;
  if (lane == 0 && mine < d) dw[mine] += sum;
}

// Whether what is aligned for x, whose rows are, is so for the gate.
bool InSteps(const GateRows& gate) {
  constexpr int64_t kStep = 8;  // bf16 in 16 bytes
  return gate.pitch % kStep == 0 && gate.at.InStepsOf(kStep);
}

}  // namespace

absl::Status GatedRmsNormForwardCuda(const Exec& exec,
                                     const GatedRmsNormForwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  const bool silu = args.activation == GateActivation::kSilu;
  const GateRows gate_at(args.x, args.gate, args.gate_at);
  return Dispatch(args.x.dtype(), d,
                  InSteps(gate_at) &&
                      Aligned16(args.x.raw(), args.gate.raw(), args.y.raw()),
                  [&](auto zero, auto n) {
                    using T = decltype(zero);
                    return Launch(kOp, exec, ShapeFor(rows),
                                  ForwardKernel<T, n()>, args.x.data<T>(),
                                  args.gate.data<T>(), gate_at,
                                  args.w.data<float>(), rows, d, args.eps, silu,
                                  args.y.data<T>());
                  });
}

absl::Status GatedRmsNormBackwardCuda(const Exec& exec,
                                      const GatedRmsNormBackwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  const bool silu = args.activation == GateActivation::kSilu;
  const GateRows gate_at(args.x, args.gate, args.gate_at);
  return Dispatch(
      args.x.dtype(), d,
      InSteps(gate_at) &&
          Aligned16(args.x.raw(), args.gate.raw(), args.dy.raw(), args.dx.raw(),
                    args.dgate.raw()),
      [&](auto zero, auto n) -> absl::Status {
        using T = decltype(zero);
        const T* const x = args.x.data<T>();
        const T* const gate = args.gate.data<T>();
        const T* const dy = args.dy.data<T>();
        if (args.dw.present() && rows > 0) {  // before dx, which may be dy
          const absl::Status status =
              Launch(kOp, exec,
                     {.grid = unsigned((d + 31) / 32), .block = dim3(32, 32)},
                     WeightKernel<T>, x, gate, gate_at, dy, rows, d, args.eps,
                     silu, args.dw.data<float>());
          if (!status.ok()) return status;
        }
        return Launch(kOp, exec, ShapeFor(rows), BackwardKernel<T, n()>, x,
                      gate, gate_at, args.w.data<float>(), dy, rows, d,
                      args.eps, silu, args.dx.data<T>(), args.dgate.data<T>());
      });
}

}  // namespace cadre
