#include <cooperative_groups.h>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/router/router.h"
#include "kernels/router/router_device.cuh"

namespace cadre {
namespace {

using namespace router_device;  // NOLINT: one file's private helpers

constexpr char kOp[] = "router_aux";
using Count = unsigned long long;

// A warp is a token; integer atomics only.
__global__ void __launch_bounds__(32 * kWarps)
    CountKernel(const float* __restrict__ logits, const int32_t* mask,
                int64_t tokens, int n, int k, Count* counts, Count* rows) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const p = shared + warp * n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens || (mask != nullptr && mask[t] == 0)) return;
  SoftmaxRow(logits + t * n, n, p, lane);
  for (int i = 0; i < k; ++i) {
    const int e = TakeLargest(p, n, lane);
    if (lane == 0) atomicAdd(counts + e, Count{1});
  }
  if (lane == 0) atomicAdd(rows, Count{1});
}

// Sums of probabilities in a fixed order: a cluster owns 32 experts, its blocks
// share the tokens, and each warp of a block takes a token at a time. (Every
// cluster forms the softmax of every token again; that is cheaper than a
// workspace would be worth.)
constexpr int kCluster = 8;

__global__ void __cluster_dims__(kCluster) __launch_bounds__(1024)
    ProbSumKernel(const float* __restrict__ logits, const int32_t* mask,
                  int64_t tokens, int n, double* prob_sum) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ double partial[32][33];
  __shared__ double mine[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rank = static_cast<int>(cluster.block_rank());
  const int expert = (blockIdx.x / kCluster) * 32 + lane;
  double sum = 0;
  for (int64_t t = rank * 32 + warp; t < tokens; t += kCluster * 32) {
    if (mask != nullptr && mask[t] == 0) continue;
    const float* const row = logits + t * n;
    float largest = -INFINITY;
    for (int e = lane; e < n; e += 32) largest = fmaxf(largest, row[e]);
    largest = WarpMax(largest);
    float total = 0;
    for (int e = lane; e < n; e += 32) total += expf(row[e] - largest);
    total = WarpSum(total);
    if (expert < n)
      sum += double(__fdiv_rn(expf(row[expert] - largest), total));
  }
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    double all = 0;
    for (int w = 0; w < 32; ++w) all += partial[w][lane];
    mine[lane] = all;
  }
  cluster.sync();
  if (rank == 0 && warp == 0 && expert < n) {
    double all = 0;
    for (int block = 0; block < kCluster; ++block)
      all += cluster.map_shared_rank(mine, block)[lane];
    prob_sum[expert] += all;
  }
  cluster.sync();  // `mine` lives until it has been read
}

__global__ void LossKernel(const int64_t* counts, const double* prob_sum,
                           const int64_t* rows, int n, double* loss) {
  double sum = 0;
  for (int e = threadIdx.x; e < n; e += 32)
    sum += static_cast<double>(counts[e]) * prob_sum[e];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const double count = static_cast<double>(rows[0]);
  if (threadIdx.x == 0) loss[0] = rows[0] == 0 ? 0 : n * sum / (count * count);
}

__global__ void __launch_bounds__(32 * kWarps)
    BackwardKernel(const float* __restrict__ logits, const int32_t* mask,
                   const int64_t* __restrict__ counts, const int64_t* rows,
                   double coefficient, int64_t tokens, int n, float* dlogits) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const p = shared + warp * n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens || rows[0] == 0 || (mask != nullptr && mask[t] == 0)) return;
  const double count = static_cast<double>(rows[0]);
  const float factor = static_cast<float>(coefficient * n / count);
  SoftmaxRow(logits + t * n, n, p, lane);
  float mean = 0;
  for (int e = lane; e < n; e += 32)
    mean += static_cast<float>(double(counts[e]) / count) * p[e];
  mean = WarpSum(mean);
  for (int e = lane; e < n; e += 32) {
    const float f = static_cast<float>(double(counts[e]) / count);
    dlogits[t * n + e] += factor * p[e] * (f - mean);
  }
}

}  // namespace

absl::Status RouterAuxAccumulateCuda(const Exec& exec,
                                     const RouterAuxAccumulateArgs& args) {
  const int64_t tokens = args.logits.dim(0), n = args.logits.dim(1);
  const RouterAuxStatistics& s = args.statistics;
  CADRE_RETURN_IF_ERROR(Launch(kOp, exec, ShapeFor(tokens, n), CountKernel,
                               args.logits.data<float>(),
                               args.mask.data<int32_t>(), tokens, n, args.top_k,
                               static_cast<Count*>(s.counts.raw()),
                               static_cast<Count*>(s.num_rows.raw())));
  return Launch(
      kOp, exec, {.grid = unsigned((n + 31) / 32 * kCluster), .block = 1024},
      ProbSumKernel, args.logits.data<float>(), args.mask.data<int32_t>(),
      tokens, n, s.prob_sum.data<double>());
}

absl::Status RouterAuxLossCuda(const Exec& exec,
                               const RouterAuxStatistics& statistics,
                               const Tensor& loss) {
  return Launch(kOp, exec, {.grid = 1, .block = 32}, LossKernel,
                statistics.counts.data<int64_t>(),
                statistics.prob_sum.data<double>(),
                statistics.num_rows.data<int64_t>(), statistics.counts.dim(0),
                loss.data<double>());
}

absl::Status RouterAuxBackwardCuda(const Exec& exec,
                                   const RouterAuxBackwardArgs& args) {
  const int64_t tokens = args.logits.dim(0), n = args.logits.dim(1);
  return Launch(kOp, exec, ShapeFor(tokens, n), BackwardKernel,
                args.logits.data<float>(), args.mask.data<int32_t>(),
                args.statistics.counts.data<int64_t>(),
                args.statistics.num_rows.data<int64_t>(), args.coefficient,
                tokens, n, args.dlogits.data<float>());
}

}  // namespace cadre
