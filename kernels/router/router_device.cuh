#ifndef CADRE_KERNELS_ROUTER_ROUTER_DEVICE_CUH_
#define CADRE_KERNELS_ROUTER_ROUTER_DEVICE_CUH_

// Private to the CUDA router: options, scores of one token and ordered
// selection, by one warp over rows in shared memory.

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/router/router.h"

namespace cadre::router_device {

inline constexpr int kWarps = 4;  // tokens of a block

// A warp a token, with `floats` of shared memory each.
inline LaunchShape ShapeFor(int64_t tokens, int64_t floats) {
  return {.grid = dim3(unsigned((tokens + kWarps - 1) / kWarps)),
          .block = dim3(32 * kWarps),
          .shared_bytes = size_t(kWarps * floats * sizeof(float))};
}

struct Options {
  bool softmax;
  int groups, topk_groups;
  bool renormalize;
  float eps, scaling;
};

inline Options ToDevice(const RouterOptions& o) {
  return {
      o.score == RouterOptions::Score::kSoftmax, static_cast<int>(o.num_groups),
      static_cast<int>(o.topk_groups),           o.renormalize,
      static_cast<float>(o.renormalize_eps),     static_cast<float>(o.scaling)};
}

// What stands in the place of a candidate that is not eligible.
__device__ __forceinline__ float Closed() { return NAN; }
__device__ __forceinline__ bool IsClosed(float x) { return x != x; }

// out = softmax(logits) over n.
__device__ __forceinline__ void SoftmaxRow(const float* logits, int n,
                                           float* out, int lane) {
  float largest = -INFINITY;
  for (int e = lane; e < n; e += 32) largest = fmaxf(largest, logits[e]);
  largest = WarpMax(largest);
  float sum = 0;
  for (int e = lane; e < n; e += 32) sum += out[e] = expf(logits[e] - largest);
  sum = WarpSum(sum);
  for (int e = lane; e < n; e += 32) out[e] = __fdiv_rn(out[e], sum);
  __syncwarp();
}

__device__ __forceinline__ void Scores(bool softmax, const float* logits, int n,
                                       float* out, int lane) {
  if (softmax) {
    SoftmaxRow(logits, n, out, lane);
    return;
  }
  for (int e = lane; e < n; e += 32) {
    // Never the exponential of a large positive number.
    const float x = logits[e], tail = expf(-fabsf(x));
    out[e] = __fdiv_rn(x >= 0 ? 1.0f : tail, 1 + tail);
  }
  __syncwarp();
}

// Index of the largest open value, the lowest of equals; closes it. At least
// one of the n must be open. Every lane gets the index.
__device__ __forceinline__ int TakeLargest(float* values, int n, int lane) {
  float best = -INFINITY;
  int at = INT_MAX;
  for (int i = lane; i < n; i += 32) {
    const float v = values[i];  // comparisons with a closed one are false
    if (v > best || (v == best && i < at)) {
      best = v;
      at = i;
    }
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, offset);
    const int other_at = __shfl_xor_sync(0xffffffffu, at, offset);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  if (at == INT_MAX) at = 0;  // NaN scores alone: stay inside the table
  __syncwarp();               // all have read
  if (lane == 0) values[at] = Closed();
  __syncwarp();
  return at;
}

// Closes the experts outside the best groups. `scores` has room for a score of
// each group.
__device__ inline void CloseOtherGroups(const Options& o, float* choice, int n,
                                        float* scores, int lane) {
  const int size = n / o.groups;
  for (int g = lane; g < o.groups; g += 32) {
    const float* group = choice + g * size;
    float first = group[0], second = -INFINITY;
    for (int i = 1; i < size; ++i) {
      if (group[i] > first) {
        second = first;
        first = group[i];
      } else if (group[i] > second) {
        second = group[i];
      }
    }
    scores[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (int i = 0; i < o.topk_groups; ++i) TakeLargest(scores, o.groups, lane);
  // The groups taken are the closed entries of `scores`.
  for (int e = lane; e < n; e += 32) {
    if (!IsClosed(scores[e / size])) choice[e] = Closed();
  }
  __syncwarp();
}

}  // namespace cadre::router_device

#endif  // CADRE_KERNELS_ROUTER_ROUTER_DEVICE_CUH_
