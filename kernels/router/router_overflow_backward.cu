#include "kernels/router/router_device.cuh"
#include "kernels/router/router_overflow.h"

namespace cadre {
namespace {

using namespace router_device;  // NOLINT: one file's private helpers

// A warp is a token. Shared memory of a warp: scores [E], gradient [E].
__global__ void __launch_bounds__(32 * kWarps)
    BackwardKernel(Options o, const float* __restrict__ logits,
                   const int32_t* __restrict__ routed,
                   const float* __restrict__ weight_sum, int64_t tokens, int n,
                   int k, float* dweights, float* dlogits) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const score = shared + warp * 2 * n;
  float* const grad = score + n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens) return;
  float* const row = dlogits + t * n;
  const float sum = weight_sum[t];
  if (sum < 0) {
    for (int e = lane; e < n; e += 32) row[e] = 0;
    return;
  }
  const int32_t* const ids = routed + t * k;
  float* const dw = dweights + t * k;
  Scores(o.softmax, logits + t * n, n, score, lane);
  for (int e = lane; e < n; e += 32) grad[e] = 0;
  __syncwarp();
  float total = 0, weighted = 0;
  for (int i = 0; i < k; ++i) {
    if (ids[i] < 0) continue;
    total += score[ids[i]];
    weighted += dw[i] * score[ids[i]];
  }
  __syncwarp();  // all have read dw
  for (int i = lane; i < k; i += 32) {
    if (ids[i] >= 0) {
      // The scores' own sum cancels, so softmax needs no more than this.
      const float s = score[ids[i]];
      const float ds = sum * (dw[i] - weighted / total) / total;
      grad[ids[i]] = ds * s * (o.softmax ? 1.0f : 1 - s);
    }
    dw[i] = 0;
  }
  __syncwarp();
  for (int e = lane; e < n; e += 32) row[e] = grad[e];
}

}  // namespace

absl::Status RouterOverflowBackwardCuda(
    const Exec& exec, const RouterOverflowBackwardArgs& args) {
  const int64_t tokens = args.logits.dim(0), experts = args.logits.dim(1);
  return Launch("router overflow backward", exec, ShapeFor(tokens, 2 * experts),
                BackwardKernel, ToDevice(args.options),
                args.logits.data<float>(), args.routed_ids.data<int32_t>(),
                args.weight_sum.data<float>(), tokens, experts,
                args.dweights.dim(1), args.dweights.data<float>(),
                args.dlogits.data<float>());
}

}  // namespace cadre
