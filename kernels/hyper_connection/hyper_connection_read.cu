// What happens in front of a sublayer. Activations bf16 or f32, everything else
// f32.
//
// The streams of a token are read twice: for the projections (a block takes
// four tokens, so that the mapping is read a quarter as often), then for the
// norm and the sum. The backward of the projections is formed together with the
// other parts of dstreams, which is so rounded once.

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_device.cuh"

namespace cadre {
namespace {

using hyper_connection_device::kOp;
using hyper_connection_device::WithStreams;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = 4;      // of a block, where tokens share the mapping
constexpr int kOutputs = 4;     // that a warp or thread forms at a time
constexpr int kMaxLogits = 80;  // (2 + m) m for m = 8

struct Mapping {
  const float* fn;
  const float* base;
  const float* scale;
  float norm_eps, eps;
  int iterations;
  int m, logits;
  __host__ __device__ int ScaleOf(int q) const { return min(q / m, 2); }
  __device__ float Argument(const float* row, int q) const {
    return scale[ScaleOf(q)] * row[q] + base[q];
  }
  // Matrices that Sinkhorn keeps for its backward, one more than its steps.
  __host__ __device__ int Matrices() const { return 2 * iterations; }
};

Mapping MappingOf(const HyperConnectionParameters& parameters, int64_t m) {
  return {.fn = parameters.fn.data<float>(),
          .base = parameters.base.data<float>(),
          .scale = parameters.scale.data<float>(),
          .norm_eps = static_cast<float>(parameters.norm_eps),
          .eps = static_cast<float>(parameters.eps),
          .iterations = static_cast<int>(parameters.sinkhorn_iters),
          .m = static_cast<int>(m),
          .logits = static_cast<int>((2 + m) * m)};
}

__device__ __forceinline__ float Sigmoid(float x) {
  const float tail = expf(-fabsf(x));
  return x >= 0 ? 1 / (1 + tail) : tail / (1 + tail);
}

// The m x m matrix of a token, by one warp; see sinkhorn.h. Every intermediate
// matrix is kept in `all`, in shared memory.
class WarpSinkhorn {
 public:
  __device__ WarpSinkhorn(const Mapping& map, float* all)
      : map_(map), all_(all), lane_(threadIdx.x % 32), m_(map.m) {}

  __device__ float* Matrix(int step) const { return all_ + step * m_ * m_; }

  __device__ const float* Forward(const float* logits) const {
    float* const start = Matrix(0);
    if (lane_ < m_) {
      const int row = 2 * m_ + lane_ * m_;
      float largest = -INFINITY, sum = 0;
      for (int i = 0; i < m_; ++i)
        largest = fmaxf(largest, map_.Argument(logits, row + i));
      for (int i = 0; i < m_; ++i) {
        const float x = expf(map_.Argument(logits, row + i) - largest);
        start[lane_ * m_ + i] = x;
        sum += x;
      }
      for (int i = 0; i < m_; ++i)
        start[lane_ * m_ + i] = start[lane_ * m_ + i] / sum + map_.eps;
    }
    __syncwarp();
    for (int step = 0; step + 1 < map_.Matrices(); ++step) {
      const float* const c = Matrix(step);
      float* const y = Matrix(step + 1);
      for (int e = lane_; e < m_ * m_; e += 32) y[e] = c[e] / Total(c, step, e);
      __syncwarp();
    }
    return Matrix(map_.Matrices() - 1);
  }

  // After Forward: d(loss)/dC in `d` (shared, m x m) becomes that of the
  // logits' arguments.
  __device__ void Backward(float* d) const {
    for (int step = map_.Matrices() - 2; step >= 0; --step) {
      const float* const c = Matrix(step);
      const float* const y = Matrix(step + 1);
      float next[2];
      for (int i = 0, e = lane_; e < m_ * m_; ++i, e += 32) {
        const int first = First(step, e), stride = Stride(step);
        float inner = 0;
        for (int n = 0; n < m_; ++n)
          inner += d[first + n * stride] * y[first + n * stride];
        next[i] = (d[e] - inner) / Total(c, step, e);
      }
      __syncwarp();
      for (int i = 0, e = lane_; e < m_ * m_; ++i, e += 32) d[e] = next[i];
      __syncwarp();
    }
    if (lane_ < m_) {
      const float* const start = Matrix(0) + lane_ * m_;
      float* const row = d + lane_ * m_;
      float inner = 0;
      for (int i = 0; i < m_; ++i) inner += row[i] * (start[i] - map_.eps);
      for (int i = 0; i < m_; ++i)
        row[i] = (start[i] - map_.eps) * (row[i] - inner);
    }
    __syncwarp();
  }

 private:
  // Even steps go over columns, odd ones over rows: the line of element e.
  __device__ int First(int step, int e) const {
    return step % 2 == 0 ? e % m_ : e / m_ * m_;
  }
  __device__ int Stride(int step) const { return step % 2 == 0 ? m_ : 1; }
  __device__ float Total(const float* c, int step, int e) const {
    const int first = First(step, e), stride = Stride(step);
    float sum = 0;
    for (int n = 0; n < m_; ++n) sum += c[first + n * stride];
    return sum + map_.eps;
  }

  const Mapping& map_;
  float* const all_;
  const int lane_, m_;
};

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

unsigned Blocks(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

LaunchShape TokenShape(int64_t tokens, const Mapping& map) {
  return {.grid = dim3(static_cast<unsigned>(tokens)),
          .block = kThreads,
          .shared_bytes = sizeof(float) *
                          static_cast<size_t>(map.Matrices() * map.m * map.m)};
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
