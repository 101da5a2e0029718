#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/router/router.h"
#include "kernels/router/router_device.cuh"

namespace cadre {
namespace {

using namespace router_device;  // NOLINT: one file's private helpers

constexpr char kOp[] = "router";

// A warp is a token. Shared memory of a warp: scores [E], choice [E], and one
// score for each group.
__global__ void __launch_bounds__(32 * kWarps)
    ForwardKernel(Options o, const float* __restrict__ logits,
                  const float* __restrict__ bias, const int32_t* mask,
                  int64_t tokens, int n, int k, bool given, int32_t* ids,
                  float* weights) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const score = shared + warp * (2 * n + o.groups);
  float* const choice = score + n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens) return;  // only warp-wide barriers below
  int32_t* const my_ids = ids + t * k;
  float* const my_weights = weights + t * k;
  if (mask != nullptr && mask[t] == 0) {
    for (int i = lane; i < k; i += 32) {
      my_ids[i] = -1;
      my_weights[i] = 0;
    }
    return;
  }
  Scores(o.softmax, logits + t * n, n, score, lane);
  for (int e = lane; e < n; e += 32)
    choice[e] = bias == nullptr ? score[e] : score[e] + bias[e];
  __syncwarp();
  if (o.groups > 1) CloseOtherGroups(o, choice, n, choice + n, lane);
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    const int e = given ? my_ids[i] : TakeLargest(choice, n, lane);
    sum += score[e];
    if (lane == 0) my_ids[i] = e;
  }
  __syncwarp();  // lane 0's ids are read below
  const float total = sum + o.eps;
  for (int i = lane; i < k; i += 32) {
    float w = score[my_ids[i]];
    if (o.renormalize) w = __fdiv_rn(w, total);
    my_weights[i] = w * o.scaling;
  }
}

// Counts of integers: their sum does not depend on the order of the atomics.
__global__ void CountKernel(const int32_t* __restrict__ ids, int64_t pairs,
                            unsigned long long* counts) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs;
       i += stride) {
    const int32_t id = ids[i];
    // Lanes with equal ids add once.
    const unsigned active = __activemask();
    const unsigned same = __match_any_sync(active, id);
    if (id >= 0 && int(threadIdx.x % 32) == __ffs(same) - 1)
      atomicAdd(counts + id, static_cast<unsigned long long>(__popc(same)));
  }
}

// Shared memory of a warp: scores [E], gradient of the logits [E].
__global__ void __launch_bounds__(32 * kWarps)
    BackwardKernel(Options o, const float* __restrict__ logits,
                   const int32_t* __restrict__ ids,
                   const float* __restrict__ dweights, int64_t tokens, int n,
                   int k, bool accumulate, float* dlogits) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const score = shared + warp * 2 * n;
  float* const grad = score + n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens) return;
  const int32_t* const my_ids = ids + t * k;
  const float* const dw = dweights + t * k;
  float* const row = dlogits + t * n;
  if (my_ids[0] < 0) {
    if (!accumulate)
      for (int e = lane; e < n; e += 32) row[e] = 0;
    return;
  }
  Scores(o.softmax, logits + t * n, n, score, lane);
  for (int e = lane; e < n; e += 32) grad[e] = 0;
  __syncwarp();
  float total = 0, weighted = 0;  // over the selected: sum s, sum dw s
  for (int i = lane; i < k; i += 32) {
    total += score[my_ids[i]];
    weighted += dw[i] * score[my_ids[i]];
  }
  total = WarpSum(total) + o.eps;
  weighted = WarpSum(weighted);
  if (o.softmax && o.renormalize && o.eps == 0) {
    for (int i = lane; i < k; i += 32) {
      const float weight = score[my_ids[i]] / total;
      grad[my_ids[i]] = o.scaling * weight * (dw[i] - weighted / total);
    }
  } else {
    float inner = 0;  // sum of ds s over the selected
    for (int i = lane; i < k; i += 32) {
      const float s = score[my_ids[i]];
      const float ds = o.renormalize
                           ? o.scaling * (dw[i] - weighted / total) / total
                           : o.scaling * dw[i];
      inner += ds * s;
      grad[my_ids[i]] = ds * s * (o.softmax ? 1.0f : 1 - s);
    }
    inner = WarpSum(inner);
    __syncwarp();
    if (o.softmax)
      for (int e = lane; e < n; e += 32) grad[e] -= score[e] * inner;
  }
  __syncwarp();
  for (int e = lane; e < n; e += 32)
    row[e] = accumulate ? row[e] + grad[e] : grad[e];
}

}  // namespace

absl::Status RouterForwardCuda(const Exec& exec,
                               const RouterForwardArgs& args) {
  const int64_t tokens = args.logits.dim(0), n = args.logits.dim(1);
  const int64_t k = args.ids.dim(1);
  const Options options = ToDevice(args.options);
  CADRE_RETURN_IF_ERROR(Launch(
      kOp, exec, ShapeFor(tokens, 2 * n + options.groups), ForwardKernel,
      options, args.logits.data<float>(), args.correction_bias.data<float>(),
      args.mask.data<int32_t>(), tokens, n, k, args.ids_given,
      args.ids.data<int32_t>(), args.weights.data<float>()));
  if (!args.counts.present()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(args.counts.raw(), 0, args.counts.num_bytes(),
                                 StreamOf(exec)),
                 "router: clearing counts"));
  return Launch(kOp, exec, {.grid = GridFor(tokens * k, 256), .block = 256},
                CountKernel, args.ids.data<int32_t>(), tokens * k,
                static_cast<unsigned long long*>(args.counts.raw()));
}

absl::Status RouterBackwardCuda(const Exec& exec,
                                const RouterBackwardArgs& args) {
  const int64_t tokens = args.logits.dim(0), n = args.logits.dim(1);
  return Launch(kOp, exec, ShapeFor(tokens, 2 * n), BackwardKernel,
                ToDevice(args.options), args.logits.data<float>(),
                args.ids.data<int32_t>(), args.dweights.data<float>(), tokens,
                n, args.ids.dim(1), args.accumulate,
                args.dlogits.data<float>());
}

}  // namespace cadre
