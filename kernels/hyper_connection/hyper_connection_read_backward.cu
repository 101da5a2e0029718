// The backward of hyper_connection_read.cu. That of the projections is formed
// together with the other parts of dstreams, which is so rounded once.

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_device.cuh"
#include "kernels/hyper_connection/hyper_connection_mapping.cuh"

namespace cadre {
namespace {

using namespace hyper_connection_device;  // NOLINT: private helpers

// d(argument) of each logit. A block is a token.
template <typename T, int kM>
__global__ void __launch_bounds__(kThreads)
    ArgumentKernel(const T* __restrict__ streams, const Mapping map,
                   int64_t width, const T* __restrict__ dx, const float* pre,
                   const float* post, const float* __restrict__ all_logits,
                   const float* dpost, const float* dcomb, float* workspace) {
  extern __shared__ float matrices[];
  __shared__ float logits[kMaxLogits], grad[kM * kM];
  const int64_t t = blockIdx.x;
  float dpre[kM] = {};
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    const float g = ToFloat(dx[t * width + d]);
#pragma unroll
    for (int i = 0; i < kM; ++i)
      dpre[i] += g * ToFloat(streams[(t * kM + i) * width + d]);
  }
  float* const darg = workspace + t * map.logits;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const float sum = BlockSum(dpre[i]);
    if (threadIdx.x == i) {
      const float s = pre[t * kM + i] - map.eps;
      darg[i] = sum * s * (1 - s);
      const float p = post[t * kM + i];
      darg[kM + i] = dpost[t * kM + i] * p * (1 - p / 2);
    }
  }
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  for (int q = lane; q < map.logits; q += 32)
    logits[q] = all_logits[t * map.logits + q];
  for (int e = lane; e < kM * kM; e += 32) grad[e] = dcomb[t * kM * kM + e];
  __syncwarp();
  const WarpSinkhorn sinkhorn(map, matrices);
  sinkhorn.Forward(logits);
  sinkhorn.Backward(grad);
  for (int e = lane; e < kM * kM; e += 32) darg[2 * kM + e] = grad[e];
}

// Of a matrix [tokens, columns].
struct Entry {
  const float* matrix;
  int columns;
  __device__ float operator()(int64_t t, int64_t column) const {
    return matrix[t * columns + column];
  }
};

// dscale: a block is one of the three, tokens in a fixed order.
__global__ void __launch_bounds__(kThreads)
    ScaleKernel(const Mapping map, int64_t tokens,
                const float* __restrict__ logits,
                const float* __restrict__ darg, float* dscale) {
  const int first = blockIdx.x * map.m;
  const int count = blockIdx.x < 2 ? map.m : map.m * map.m;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < tokens * count; i += kThreads) {
    const int64_t at = i / count * map.logits + first + i % count;
    sum += darg[at] * logits[at];
  }
  sum = BlockSum(sum);
  if (threadIdx.x == 0) dscale[blockIdx.x] += sum;
}

// Adds the three parts of d(streams): through x, through the norm, through the
// projections; with slope = rstd d(logits) = rstd scale d(argument). Four
// tokens and 256 channels of all streams a block.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    StreamsKernel(const T* __restrict__ streams, const Mapping map,
                  int64_t tokens, int64_t width, const T* __restrict__ dx,
                  const float* __restrict__ pre,
                  const float* __restrict__ logits,
                  const float* __restrict__ all_rstd,
                  const float* __restrict__ workspace, T* dstreams) {
  __shared__ float slope[kTokens][kMaxLogits], along[kTokens];
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  const int64_t row = map.m * width;
  const int count = static_cast<int>(min(int64_t{kTokens}, tokens - first));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < kTokens) {
    float sum = 0;
    for (int q = lane; q < map.logits; q += 32) {
      const int64_t at = (first + warp) * map.logits + q;
      const float value = warp < count
                              ? workspace[at] * map.scale[map.ScaleOf(q)] *
                                    all_rstd[first + warp]
                              : 0.0f;
      slope[warp][q] = value;
      if (warp < count) sum += value * logits[at];
    }
    sum = WarpSum(sum);
    if (lane == 0 && warp < count)
      along[warp] = sum * all_rstd[first + warp] / float(row);
  }
  __syncthreads();
  const int64_t d = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  if (d >= row) return;
  float sum[kTokens] = {};
  for (int q = 0; q < map.logits; ++q) {
    const float f = map.fn[q * row + d];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) sum[i] += slope[i][q] * f;
  }
  const int64_t stream = d / width, channel = d % width;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i >= count) continue;
    const int64_t t = first + i, at = t * row + d;
    dstreams[at] = FromFloat<T>(ToFloat(dstreams[at]) +
                                pre[t * map.m + stream] *
                                    ToFloat(dx[t * width + channel]) -
                                along[i] * ToFloat(streams[at]) + sum[i]);
  }
}

// dfn [q, d] += the sum over tokens of slope x. A thread takes a channel and
// four of the logits; tokens in order.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MappingKernel(const T* __restrict__ streams, const Mapping map,
                  int64_t tokens, int64_t row, const float* __restrict__ rstd,
                  const float* __restrict__ workspace, float* dfn) {
  const int64_t d = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int q0 = blockIdx.y * kOutputs;
  if (d >= row) return;
  float sum[kOutputs] = {};
#pragma unroll 4
  for (int64_t t = 0; t < tokens; ++t) {
    const float x = rstd[t] * ToFloat(streams[t * row + d]);
    // m of 1 has 3 logits: the last group is not always full.
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
      if (q0 + j < map.logits) sum[j] += workspace[t * map.logits + q0 + j] * x;
    }
  }
#pragma unroll
  for (int j = 0; j < kOutputs; ++j) {
    if (q0 + j < map.logits)
      dfn[(q0 + j) * row + d] += map.scale[map.ScaleOf(q0 + j)] * sum[j];
  }
}

}  // namespace

absl::Status HyperConnectionReadBackwardCuda(
    const Exec& exec, const HyperConnectionReadBackwardArgs& args) {
  const int64_t tokens = args.streams.dim(0), width = args.streams.dim(2);
  const Mapping map = MappingOf(args.parameters, args.streams.dim(1));
  const int64_t row = map.m * width;
  const float* const darg = args.workspace.data<float>();
  const float* const logits = args.logits.data<float>();
  return DispatchCuda(args.streams.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    CADRE_RETURN_IF_ERROR(WithStreams(map.m, [&](auto streams) {
      return Launch(kOp, exec, TokenShape(tokens, map),
                    ArgumentKernel<T, decltype(streams)::value>,
                    args.streams.data<T>(), map, width, args.dx.data<T>(),
                    args.pre.data<float>(), args.post.data<float>(), logits,
                    args.dpost.data<float>(), args.dcomb.data<float>(),
                    args.workspace.data<float>());
    }));
    if (args.dbase.present()) {
      CADRE_RETURN_IF_ERROR(SumRows(kOp, exec, tokens, map.logits, true,
                                    args.dbase.data<float>(),
                                    Entry{darg, map.logits}));
    }
    if (args.dscale.present()) {
      CADRE_RETURN_IF_ERROR(Launch(kOp, exec, {.grid = 3, .block = kThreads},
                                   ScaleKernel, map, tokens, logits, darg,
                                   args.dscale.data<float>()));
    }
    CADRE_RETURN_IF_ERROR(
        Launch(kOp, exec,
               {.grid = dim3(Blocks(tokens, kTokens), Blocks(row, kThreads)),
                .block = kThreads},
               StreamsKernel<T>, args.streams.data<T>(), map, tokens, width,
               args.dx.data<T>(), args.pre.data<float>(), logits,
               args.rstd.data<float>(), darg, args.dstreams.data<T>()));
    if (!args.dfn.present()) return absl::OkStatus();
    return Launch(
        kOp, exec,
        {.grid = dim3(Blocks(row, kThreads), Blocks(map.logits, kOutputs)),
         .block = kThreads},
        MappingKernel<T>, args.streams.data<T>(), map, tokens, row,
        args.rstd.data<float>(), darg, args.dfn.data<float>());
  });
}

}  // namespace cadre
