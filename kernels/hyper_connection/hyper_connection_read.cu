// What happens in front of a sublayer. Activations bf16 or f32, everything else
// f32.
//
// The streams of a token are read twice: for the projections (a block takes
// four tokens, so that the mapping is read a quarter as often), then for the
// norm and the sum.

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

// Projections of four tokens, before rstd: a warp forms four of them at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ProjectKernel(const T* __restrict__ streams, const Mapping map,
                  int64_t tokens, int64_t row, float* logits) {
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int q0 = warp * kOutputs; q0 < map.logits; q0 += kWarps * kOutputs) {
    float sum[kTokens][kOutputs] = {};
    for (int64_t d = lane; d < row; d += 32) {
      float x[kTokens], f[kOutputs];
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        x[i] =
            first + i < tokens ? ToFloat(streams[(first + i) * row + d]) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kOutputs; ++j)
        f[j] = q0 + j < map.logits ? map.fn[(q0 + j) * row + d] : 0.0f;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) sum[i][j] += x[i] * f[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
#pragma unroll
      for (int j = 0; j < kOutputs; ++j) {
        const float total = WarpSum(sum[i][j]);
        if (lane == 0 && first + i < tokens && q0 + j < map.logits)
          logits[(first + i) * map.logits + q0 + j] = total;
      }
    }
  }
}

// A block is a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ReadKernel(const T* __restrict__ streams, const Mapping map, int64_t width,
               T* out, float* all_pre, float* all_post, float* comb,
               float* all_logits, float* all_rstd) {
  extern __shared__ float matrices[];
  __shared__ float logits[kMaxLogits], pre[8];
  const int64_t t = blockIdx.x;
  const int m = map.m;
  const T* const x = streams + t * m * width;
  float squares = 0;
  for (int64_t d = threadIdx.x; d < m * width; d += kThreads) {
    const float v = ToFloat(x[d]);
    squares += v * v;
  }
  const float rstd =
      rsqrtf(BlockSum(squares) / float(m * width) + map.norm_eps);
  if (threadIdx.x < map.logits) {
    float* const logit = all_logits + t * map.logits + threadIdx.x;
    logits[threadIdx.x] = *logit *= rstd;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    if (lane < m) {
      pre[lane] = Sigmoid(map.Argument(logits, lane)) + map.eps;
      all_pre[t * m + lane] = pre[lane];
      all_post[t * m + lane] = 2 * Sigmoid(map.Argument(logits, m + lane));
    }
    if (lane == 0) all_rstd[t] = rstd;
    const float* const mixed = WarpSinkhorn(map, matrices).Forward(logits);
    for (int e = lane; e < m * m; e += 32) comb[t * m * m + e] = mixed[e];
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    float sum = 0;
    for (int i = 0; i < m; ++i) sum += pre[i] * ToFloat(x[i * width + d]);
    out[t * width + d] = FromFloat<T>(sum);
  }
}

}  // namespace

absl::Status HyperConnectionReadCuda(const Exec& exec,
                                     const HyperConnectionReadArgs& args) {
  const int64_t tokens = args.streams.dim(0), width = args.streams.dim(2);
  const Mapping map = MappingOf(args.parameters, args.streams.dim(1));
  return DispatchCuda(args.streams.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    CADRE_RETURN_IF_ERROR(
        Launch(kOp, exec, {.grid = Blocks(tokens, kTokens), .block = kThreads},
               ProjectKernel<T>, args.streams.data<T>(), map, tokens,
               map.m * width, args.logits.data<float>()));
    return Launch(kOp, exec, TokenShape(tokens, map), ReadKernel<T>,
                  args.streams.data<T>(), map, width, args.x.data<T>(),
                  args.pre.data<float>(), args.post.data<float>(),
                  args.comb.data<float>(), args.logits.data<float>(),
                  args.rstd.data<float>());
  });
}

}  // namespace cadre
