#ifndef CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_MAPPING_CUH_
#define CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_MAPPING_CUH_

// Private to the CUDA side of what happens in front of a sublayer: the mapping
// from a token's streams to its weights, forward and backward, and the shapes
// of launches over tokens.

#include <algorithm>
#include <cstdint>

#include "kernels/common/launch.cuh"
#include "kernels/hyper_connection/hyper_connection.h"

namespace cadre::hyper_connection_device {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kTokens = 4;  // of a block, where tokens share the mapping
inline constexpr int kOutputs = 4;     // that a warp or thread forms at a time
inline constexpr int kMaxLogits = 80;  // (2 + m) m for m = 8

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

inline Mapping MappingOf(const HyperConnectionParameters& parameters,
                         int64_t m) {
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

inline unsigned Blocks(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

inline LaunchShape TokenShape(int64_t tokens, const Mapping& map) {
  return {.grid = dim3(static_cast<unsigned>(tokens)),
          .block = kThreads,
          .shared_bytes = sizeof(float) *
                          static_cast<size_t>(map.Matrices() * map.m * map.m)};
}

}  // namespace cadre::hyper_connection_device

#endif  // CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_MAPPING_CUH_
