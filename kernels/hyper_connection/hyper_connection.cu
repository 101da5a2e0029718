// What happens behind a sublayer, and at both ends of the network. Activations
// bf16 or f32, everything else f32.

#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_device.cuh"

namespace cadre {
namespace {

using hyper_connection_device::kOp;
using hyper_connection_device::WithStreams;

constexpr int kThreads = 256;

// A block is a token. The result may take the place of the streams: a thread
// reads its channels of all streams before it writes one.
template <typename T, int kM>
__global__ void __launch_bounds__(kThreads)
    WriteKernel(const T* streams, const T* __restrict__ o,
                const float* __restrict__ post, const float* __restrict__ comb,
                int64_t width, T* out) {
  const int64_t t = blockIdx.x;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    float x[kM];
#pragma unroll
    for (int j = 0; j < kM; ++j)
      x[j] = ToFloat(streams[(t * kM + j) * width + d]);
    const float added = ToFloat(o[t * width + d]);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float sum = post[t * kM + i] * added;
#pragma unroll
      for (int j = 0; j < kM; ++j) sum += comb[(t * kM + j) * kM + i] * x[j];
      out[(t * kM + i) * width + d] = FromFloat<T>(sum);
    }
  }
}

// A block is a token; dstreams may be dstreams_out itself.
template <typename T, int kM>
__global__ void __launch_bounds__(kThreads)
    WriteBackwardKernel(const T* __restrict__ streams, const T* __restrict__ o,
                        const float* __restrict__ post,
                        const float* __restrict__ comb, const T* dstreams_out,
                        int64_t width, T* d_o, float* dpost, float* dcomb,
                        T* dstreams) {
  const int64_t t = blockIdx.x;
  float along_o[kM] = {}, along_x[kM][kM] = {};
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    const float out = ToFloat(o[t * width + d]);
    float g[kM], added = 0;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      g[i] = ToFloat(dstreams_out[(t * kM + i) * width + d]);
      added += post[t * kM + i] * g[i];
      along_o[i] += out * g[i];
    }
    d_o[t * width + d] = FromFloat<T>(added);
#pragma unroll
    for (int j = 0; j < kM; ++j) {
      const float x = ToFloat(streams[(t * kM + j) * width + d]);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        along_x[j][i] += x * g[i];
        sum += comb[(t * kM + j) * kM + i] * g[i];
      }
      dstreams[(t * kM + j) * width + d] = FromFloat<T>(sum);
    }
  }
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const float sum = BlockSum(along_o[i]);
    if (threadIdx.x == 0) dpost[t * kM + i] = sum;
#pragma unroll
    for (int j = 0; j < kM; ++j) {
      const float mixed = BlockSum(along_x[j][i]);
      if (threadIdx.x == 0) dcomb[(t * kM + j) * kM + i] = mixed;
    }
  }
}

// A block is a row of a stream.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BroadcastKernel(const T* __restrict__ x, int64_t m, int64_t width,
                    float factor, T* streams) {
  const int64_t row = blockIdx.x;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    streams[row * width + d] =
        FromFloat<T>(factor * ToFloat(x[row / m * width + d]));
  }
}

// A block is a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumKernel(const T* __restrict__ streams, int64_t m, int64_t width,
              float factor, T* x) {
  const int64_t t = blockIdx.x;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) {
    float sum = 0;
    for (int64_t i = 0; i < m; ++i)
      sum += ToFloat(streams[(t * m + i) * width + d]);
    x[t * width + d] = FromFloat<T>(factor * sum);
  }
}

LaunchShape OneBlockEach(int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(rows)), .block = kThreads};
}

}  // namespace

absl::Status HyperConnectionWriteCuda(const Exec& exec,
                                      const HyperConnectionWriteArgs& args) {
  return DispatchCuda(args.streams.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return WithStreams(args.streams.dim(1), [&](auto streams) {
      return Launch(kOp, exec, OneBlockEach(args.streams.dim(0)),
                    WriteKernel<T, decltype(streams)::value>,
                    args.streams.data<T>(), args.o.data<T>(),
                    args.post.data<float>(), args.comb.data<float>(),
                    args.streams.dim(2), args.streams_out.data<T>());
    });
  });
}

absl::Status HyperConnectionWriteBackwardCuda(
    const Exec& exec, const HyperConnectionWriteBackwardArgs& args) {
  return DispatchCuda(args.streams.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return WithStreams(args.streams.dim(1), [&](auto streams) {
      return Launch(kOp, exec, OneBlockEach(args.streams.dim(0)),
                    WriteBackwardKernel<T, decltype(streams)::value>,
                    args.streams.data<T>(), args.o.data<T>(),
                    args.post.data<float>(), args.comb.data<float>(),
                    args.dstreams_out.data<T>(), args.streams.dim(2),
                    args.d_o.data<T>(), args.dpost.data<float>(),
                    args.dcomb.data<float>(), args.dstreams.data<T>());
    });
  });
}

absl::Status StreamsBroadcastCuda(const Exec& exec, const StreamsArgs& args) {
  return DispatchCuda(args.streams.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec,
                  OneBlockEach(args.streams.dim(0) * args.streams.dim(1)),
                  BroadcastKernel<T>, args.x.data<T>(), args.streams.dim(1),
                  args.streams.dim(2), static_cast<float>(args.factor),
                  args.streams.data<T>());
  });
}

absl::Status StreamsSumCuda(const Exec& exec, const StreamsArgs& args) {
  return DispatchCuda(args.streams.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec, OneBlockEach(args.streams.dim(0)), SumKernel<T>,
                  args.streams.data<T>(), args.streams.dim(1),
                  args.streams.dim(2), static_cast<float>(args.factor),
                  args.x.data<T>());
  });
}

}  // namespace cadre
