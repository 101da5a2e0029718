#include <cooperative_groups.h>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/router/router_z_loss.h"

namespace cadre {
namespace {

constexpr char kOp[] = "router z-loss";
constexpr int kCluster = 8, kBlock = 1024, kWarpsOfCluster = kCluster * 32;

// logsumexp of a row, by a warp; every lane gets it.
__device__ __forceinline__ float LogSumExp(const float* row, int n, int lane) {
  float largest = -INFINITY;
  for (int e = lane; e < n; e += 32) largest = fmaxf(largest, row[e]);
  largest = WarpMax(largest);
  float total = 0;
  for (int e = lane; e < n; e += 32) total += expf(row[e] - largest);
  return largest + logf(WarpSum(total));
}

// One cluster: a warp takes every 256th token, and the parts are added in order
// through distributed shared memory, so that neither workspace nor atomics are
// needed and every run sums alike.
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kBlock)
    SumKernel(const float* __restrict__ logits, const int32_t* mask,
              int64_t tokens, int n, double* sum) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ double parts[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double mine = 0;
  for (int64_t t = int64_t(blockIdx.x) * 32 + warp; t < tokens;
       t += kWarpsOfCluster) {
    if (mask != nullptr && mask[t] == 0) continue;
    const double z = LogSumExp(logits + t * n, n, lane);
    mine += z * z;
  }
  if (lane == 0) parts[warp] = mine;
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    double all = 0;
    for (int block = 0; block < kCluster; ++block) {
      const double* const from = cluster.map_shared_rank(parts, block);
      for (int w = 0; w < 32; ++w) all += from[w];
    }
    *sum += all;
  }
  cluster.sync();  // `parts` lives until it has been read
}

__global__ void GradientKernel(const float* __restrict__ logits,
                               const int32_t* mask, int64_t tokens, int n,
                               float twice_coefficient, float* dlogits) {
  const int lane = threadIdx.x % 32;
  const int64_t t = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (t >= tokens || (mask != nullptr && mask[t] == 0)) return;
  const float* const row = logits + t * n;
  float* const grad = dlogits + t * n;
  const float z = LogSumExp(row, n, lane);
  const float factor = twice_coefficient * z;
  for (int e = lane; e < n; e += 32) grad[e] += factor * expf(row[e] - z);
}

}  // namespace

absl::Status RouterZLossCuda(const Exec& exec, const RouterZLossArgs& args) {
  const int64_t tokens = args.logits.dim(0), experts = args.logits.dim(1);
  const float* const logits = args.logits.data<float>();
  const int32_t* const mask = args.mask.data<int32_t>();
  if (tokens == 0) return absl::OkStatus();
  if (args.sum.present()) {
    CADRE_RETURN_IF_ERROR(Launch(
        kOp, exec, {.grid = dim3(kCluster), .block = dim3(kBlock)}, SumKernel,
        logits, mask, tokens, experts, args.sum.data<double>()));
  }
  if (!args.dlogits.present()) return absl::OkStatus();
  constexpr int kTokens = 4;
  return Launch(kOp, exec,
                {.grid = dim3(unsigned((tokens + kTokens - 1) / kTokens)),
                 .block = dim3(32 * kTokens)},
                GradientKernel, logits, mask, tokens, experts,
                2 * args.coefficient, args.dlogits.data<float>());
}

}  // namespace cadre
