#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/moe_permute/moe_permute.h"

namespace cadre {
namespace {

constexpr char kOp[] = "moe_permute";
constexpr int kBlock = 256;

// ---- tables -----------------------------------------------------------------
//
// Pairs are cut into chunks, a warp each. A chunk ranks its pairs among those
// of the same expert (into row_of) and counts them. Counts become first rows by
// a scan over chunks and experts; rank plus first row is the pair's row. The
// counts of all chunks lie in row_source until it is written itself: with
// chunks of twice the experts they fit.

// Ranks pairs [begin, end) and adds to hist [E], which the warp owns.
__device__ void RankPairs(const int32_t* ids, int64_t begin, int64_t end,
                          int32_t* hist, int32_t* row_of, int lane) {
  for (int64_t base = begin; base < end; base += 32) {
    const int64_t i = base + lane;
    const int32_t id = i < end ? ids[i] : -1;
    const unsigned same = __match_any_sync(0xffffffffu, id);
    const int before = __popc(same & ((1u << lane) - 1));
    int32_t rank = -1;
    if (id >= 0) rank = hist[id] + before;
    __syncwarp();
    if (id >= 0 && before == 0) hist[id] += __popc(same);
    __syncwarp();
    if (i < end) row_of[i] = rank;
  }
}

__global__ void RankKernel(const int32_t* __restrict__ ids, int64_t pairs,
                           int64_t chunk, int experts, int32_t* row_of,
                           int32_t* counts) {
  extern __shared__ int32_t hist[];
  const int lane = threadIdx.x;
  for (int e = lane; e < experts; e += 32) hist[e] = 0;
  __syncwarp();
  const int64_t begin = blockIdx.x * chunk;
  RankPairs(ids, begin, min(pairs, begin + chunk), hist, row_of, lane);
  for (int e = lane; e < experts; e += 32)
    counts[int64_t(blockIdx.x) * experts + e] = hist[e];
}

// Exclusive sum over the block's threads, in thread order.
__device__ int32_t BlockExclusiveSum(int32_t x, int32_t* total) {
  __shared__ int32_t warp_sum[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t inclusive = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == 31) warp_sum[warp] = inclusive;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int w = 0; w < int(blockDim.x / 32); ++w) {
    if (w < warp) before += warp_sum[w];
    all += warp_sum[w];
  }
  __syncthreads();
  *total = all;
  return before + inclusive - x;
}

// counts [chunks,E] become the first row of each chunk inside its expert;
// offsets are the first rows of experts. One block.
__global__ void ScanKernel(int32_t* counts, int64_t chunks, int experts,
                           int32_t* offsets) {
  int32_t carry = 0;
  for (int base = 0; base < experts; base += blockDim.x) {
    const int e = base + threadIdx.x;
    int32_t sum = 0;
    if (e < experts) {
      for (int64_t c = 0; c < chunks; c += 8) {
        int32_t count[8];  // loads side by side, then stores
#pragma unroll
        for (int j = 0; j < 8; ++j)
          count[j] = c + j < chunks ? counts[(c + j) * experts + e] : 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (c + j < chunks) counts[(c + j) * experts + e] = sum;
          sum += count[j];
        }
      }
    }
    int32_t total;
    const int32_t first = BlockExclusiveSum(sum, &total);
    if (e < experts) offsets[e] = carry + first;
    carry += total;
  }
  if (threadIdx.x == 0) offsets[experts] = carry;
}

__global__ void PlaceKernel(const int32_t* __restrict__ ids, int64_t pairs,
                            int64_t chunk, int experts,
                            const int32_t* __restrict__ counts,
                            const int32_t* __restrict__ offsets,
                            int32_t* row_of) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= pairs || ids[i] < 0) return;
  row_of[i] += offsets[ids[i]] + counts[i / chunk * experts + ids[i]];
}

__global__ void InvertKernel(const int32_t* __restrict__ row_of, int64_t pairs,
                             int experts, const int32_t* __restrict__ offsets,
                             int32_t* row_source) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= pairs) return;
  if (i >= offsets[experts]) row_source[i] = -1;
  if (row_of[i] >= 0) row_source[row_of[i]] = static_cast<int32_t>(i);
}

// All of it for few pairs, by one warp.
__global__ void SmallKernel(const int32_t* __restrict__ ids, int pairs,
                            int experts, int32_t* offsets, int32_t* row_of) {
  extern __shared__ int32_t hist[];
  const int lane = threadIdx.x;
  for (int e = lane; e < experts; e += 32) hist[e] = 0;
  __syncwarp();
  RankPairs(ids, 0, pairs, hist, row_of, lane);
  int32_t carry = 0;
  for (int base = 0; base < experts; base += 32) {
    const int e = base + lane;
    int32_t total;
    const int32_t first = BlockExclusiveSum(e < experts ? hist[e] : 0, &total);
    if (e < experts) {
      hist[e] = carry + first;
      offsets[e] = carry + first;
    }
    carry += total;
  }
  if (lane == 0) offsets[experts] = carry;
  __syncwarp();
  for (int i = lane; i < pairs; i += 32)
    if (ids[i] >= 0) row_of[i] += hist[ids[i]];
}

// ---- rows -------------------------------------------------------------------

// `width` counts packs of N elements.
template <typename T, int N>
__global__ void GatherKernel(const T* __restrict__ x,
                             const int32_t* __restrict__ source, int top_k,
                             int64_t rows, int64_t width, T* __restrict__ out) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x; i < rows * width;
       i += stride) {
    const int64_t row = i / width;
    const int32_t pair = source[row];
    Pack<T, N> pack = {};
    if (pair >= 0) {
      pack = reinterpret_cast<const Pack<T, N>*>(
          x)[pair / top_k * width + (i - row * width)];
    }
    reinterpret_cast<Pack<T, N>*>(out)[i] = pack;
  }
}

template <typename T, int N>
__global__ void CombineKernel(const T* __restrict__ rows,
                              const int32_t* __restrict__ row_of,
                              const float* __restrict__ weights, int top_k,
                              int64_t tokens, int64_t width, bool accumulate,
                              T* y) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
       i < tokens * width; i += stride) {
    const int64_t t = i / width;
    const int64_t column = (i - t * width) * N;
    float sum[N] = {};
    if (accumulate) LoadVec<N>(y + i * N, sum);
#pragma unroll 4
    for (int slot = 0; slot < top_k; ++slot) {
      const int32_t row = row_of[t * top_k + slot];
      if (row < 0) continue;
      const float weight =
          weights != nullptr ? weights[t * top_k + slot] : 1.0f;
      float v[N];
      LoadVec<N>(rows + row * (width * N) + column, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += weight * v[j];
    }
    StoreVec<N>(y + i * N, sum);
  }
}

// A block is a row. drows may be rows: a thread reads an element before it
// writes it, and no other thread does either.
template <typename T, int N>
__global__ void CombineBackwardKernel(const T* __restrict__ dy,
                                      const int32_t* __restrict__ source,
                                      const float* __restrict__ weights,
                                      int top_k, int64_t width, const T* rows,
                                      T* drows, float* dweights) {
  const int64_t row = blockIdx.x;
  const int32_t pair = source[row];
  const T* grad = dy + int64_t(pair / top_k) * width;
  const float weight = weights == nullptr || pair < 0 ? 1.0f : weights[pair];
  float dot = 0;
  for (int64_t i = threadIdx.x * N; i < width; i += int64_t(blockDim.x) * N) {
    float g[N] = {};
    if (pair >= 0) {
      LoadVec<N>(grad + i, g);
      if (dweights != nullptr) {
        float v[N];
        LoadVec<N>(rows + row * width + i, v);
#pragma unroll
        for (int j = 0; j < N; ++j) dot += g[j] * v[j];
      }
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] *= weight;
    }
    StoreVec<N>(drows + row * width + i, g);
  }
  if (dweights == nullptr || pair < 0) return;  // the same for all threads
  dot = BlockSum(dot);
  if (threadIdx.x == 0) dweights[pair] = dot;
}

__global__ void ClearAbsentKernel(const int32_t* __restrict__ row_of,
                                  int64_t pairs, float* dweights) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i < pairs && row_of[i] < 0) dweights[i] = 0;
}

// Calls fn(zero of T, elements of one access).
template <typename Fn>
absl::Status Dispatch(DType dtype, int64_t width, bool aligned, Fn&& fn) {
  return DispatchCuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    return aligned && width % kVec<T> == 0
               ? fn(zero, std::integral_constant<int, kVec<T>>{})
               : fn(zero, std::integral_constant<int, 1>{});
  });
}

}  // namespace

absl::Status MoePermuteCuda(const Exec& exec, const MoePermuteArgs& args) {
  const int64_t pairs = args.ids.num_elements();
  const int64_t experts = args.offsets.dim(0) - 1;
  const int32_t* const ids = args.ids.data<int32_t>();
  int32_t* const offsets = args.offsets.data<int32_t>();
  int32_t* const row_source = args.row_source.data<int32_t>();
  int32_t* const row_of = args.row_of.data<int32_t>();
  const size_t shared = experts * sizeof(int32_t);
  const int64_t chunk = std::max<int64_t>(1024, 2 * experts);
  const LaunchShape per_pair = {.grid = unsigned((pairs + kBlock - 1) / kBlock),
                                .block = kBlock};
  if (pairs < chunk) {
    CADRE_RETURN_IF_ERROR(
        Launch(kOp, exec, {.grid = 1, .block = 32, .shared_bytes = shared},
               SmallKernel, ids, pairs, experts, offsets, row_of));
  } else {
    const int64_t chunks = (pairs + chunk - 1) / chunk;
    CADRE_RETURN_IF_ERROR(
        Launch(kOp, exec,
               {.grid = unsigned(chunks), .block = 32, .shared_bytes = shared},
               RankKernel, ids, pairs, chunk, experts, row_of, row_source));
    CADRE_RETURN_IF_ERROR(Launch(kOp, exec, {.grid = 1, .block = 1024},
                                 ScanKernel, row_source, chunks, experts,
                                 offsets));
    CADRE_RETURN_IF_ERROR(Launch(kOp, exec, per_pair, PlaceKernel, ids, pairs,
                                 chunk, experts, row_source, offsets, row_of));
  }
  return Launch(kOp, exec, per_pair, InvertKernel, row_of, pairs, experts,
                offsets, row_source);
}

absl::Status MoeGatherCuda(const Exec& exec, const MoeGatherArgs& args) {
  const int64_t rows = args.rows.dim(0), width = args.x.dim(1);
  return Dispatch(
      args.x.dtype(), width, Aligned16(args.x.raw(), args.rows.raw()),
      [&](auto zero, auto n) {
        using T = decltype(zero);
        return Launch(
            kOp, exec,
            {.grid = GridFor(rows * (width / n()), kBlock), .block = kBlock},
            GatherKernel<T, n()>, args.x.data<T>(),
            args.row_source.data<int32_t>(), args.top_k, rows, width / n(),
            args.rows.data<T>());
      });
}

absl::Status MoeCombineCuda(const Exec& exec, const MoeCombineArgs& args) {
  const int64_t tokens = args.y.dim(0), width = args.rows.dim(1);
  return Dispatch(
      args.y.dtype(), width, Aligned16(args.rows.raw(), args.y.raw()),
      [&](auto zero, auto n) {
        using T = decltype(zero);
        return Launch(
            kOp, exec,
            {.grid = GridFor(tokens * (width / n()), kBlock), .block = kBlock},
            CombineKernel<T, n()>, args.rows.data<T>(),
            args.row_of.data<int32_t>(), args.weights.data<float>(),
            args.row_of.dim(1), tokens, width / n(), args.accumulate,
            args.y.data<T>());
      });
}

absl::Status MoeCombineBackwardCuda(const Exec& exec,
                                    const MoeCombineBackwardArgs& args) {
  const int64_t pairs = args.row_of.num_elements(), width = args.dy.dim(1);
  if (args.dweights.present()) {
    CADRE_RETURN_IF_ERROR(Launch(
        kOp, exec,
        {.grid = unsigned((pairs + kBlock - 1) / kBlock), .block = kBlock},
        ClearAbsentKernel, args.row_of.data<int32_t>(), pairs,
        args.dweights.data<float>()));
  }
  return Dispatch(args.dy.dtype(), width,
                  Aligned16(args.dy.raw(), args.rows.raw(), args.drows.raw()),
                  [&](auto zero, auto n) {
                    using T = decltype(zero);
                    return Launch(
                        kOp, exec,
                        {.grid = unsigned(args.drows.dim(0)), .block = 128},
                        CombineBackwardKernel<T, n()>, args.dy.data<T>(),
                        args.row_source.data<int32_t>(),
                        args.weights.data<float>(), args.row_of.dim(1), width,
                        args.dweights.present() ? args.rows.data<T>() : nullptr,
                        args.drows.data<T>(), args.dweights.data<float>());
                  });
}

}  // namespace cadre
