#include <algorithm>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/moe_dispatch/moe_dispatch.h"

namespace cadre {
namespace {

constexpr char kOp[] = "moe_dispatch";
constexpr int kBlock = 256;
constexpr int kMaxChoices = 64;
// MoeUnpackPairs: a block's share, cut into a run of pairs for each thread.
constexpr int kPairsPerThread = 8;
constexpr int kPairsPerBlock = kBlock * kPairsPerThread;

// A thread is a token: its pairs are few, and sorting them in place of a table
// over slots keeps the cost independent of the number of experts.
__global__ void SlotsKernel(
    const int32_t* __restrict__ ids, int64_t tokens, int k, int fan,
    int experts, const int32_t* __restrict__ first_copy,
    const int32_t* __restrict__ copies, const int32_t* __restrict__ offsets,
    const int32_t* __restrict__ row_of, int ep_rank, int slots_per_rank,
    int32_t* __restrict__ slots, int32_t* __restrict__ ranks,
    int32_t* __restrict__ choices, int32_t* __restrict__ destinations) {
  const int64_t t = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (t >= tokens) return;
  int32_t slot[kMaxChoices], choice[kMaxChoices];
  int n = 0;
  for (int c = 0; c < k; ++c) {
    const int32_t id = ids[t * k + c];
    if (id < 0 || id >= experts) continue;
    int32_t copy = 0;
    if (offsets != nullptr) {
      const int32_t j = row_of[t * k + c] - offsets[id];
      copy = (ep_rank + j) % (first_copy[id + 1] - first_copy[id]);
    }
    const int32_t s = copies[first_copy[id] + copy];
    int i = n++;
    for (; i > 0 && slot[i - 1] > s; --i) {
      slot[i] = slot[i - 1];
      choice[i] = choice[i - 1];
    }
    slot[i] = s;
    choice[i] = c;
  }
  int used = 0;
  for (int i = 0; i < k; ++i) {
    const int64_t at = t * k + i;
    if (i >= n) {
      slots[at] = ranks[at] = choices[at] = -1;
      continue;
    }
    const int32_t rank = slot[i] / slots_per_rank;
    const bool last = i + 1 == n || slot[i + 1] / slots_per_rank != rank;
    slots[at] = slot[i] % slots_per_rank + (last ? kLastPair : 0);
    ranks[at] = rank;
    choices[at] = choice[i];
    if (last && used < fan) destinations[t * fan + used++] = rank;
  }
  for (; used < fan; ++used) destinations[t * fan + used] = -1;
}

__global__ void PackKernel(const int32_t* __restrict__ source,
                           const int32_t* __restrict__ slots,
                           const int32_t* __restrict__ choices,
                           const float* __restrict__ weights, int k, int64_t n,
                           int2* __restrict__ pairs) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= n) return;
  const int32_t at = source[i];
  pairs[i] =
      make_int2(slots[at], __float_as_int(weights[at / k * k + choices[at]]));
}

// Rows that end in each block's share.
__global__ void CountRowsKernel(const int2* __restrict__ pairs, int64_t n,
                                int32_t* __restrict__ counts) {
  __shared__ int32_t sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  const int64_t base = int64_t(blockIdx.x) * kPairsPerBlock;
  int32_t mine = 0;
  for (int j = 0; j < kPairsPerThread; ++j) {
    const int64_t i = base + j * kBlock + threadIdx.x;
    if (i < n && pairs[i].x >= kLastPair) ++mine;
  }
  atomicAdd(&sum, mine);  // of integers: the order does not matter
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

__global__ void UnpackKernel(const int2* __restrict__ pairs, int64_t n,
                             const int32_t* __restrict__ counts, int64_t rows,
                             int width, int slots_per_rank,
                             int32_t* __restrict__ slots,
                             float* __restrict__ weights,
                             int32_t* __restrict__ places) {
  __shared__ int32_t before, warp_sum[kBlock / 32];
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  int32_t sum = 0;
  for (int b = threadIdx.x; b < int(blockIdx.x); b += kBlock) sum += counts[b];
  atomicAdd(&before, sum);
  const int64_t begin = int64_t(blockIdx.x) * kPairsPerBlock +
                        int64_t(threadIdx.x) * kPairsPerThread;
  const int64_t end = min(n, begin + kPairsPerThread);
  int32_t mine = 0;
  for (int64_t i = begin; i < end; ++i) mine += pairs[i].x >= kLastPair;
  // Rows that end in the threads before this one.
  int32_t inclusive = mine;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == 31) warp_sum[warp] = inclusive;
  __syncthreads();
  int64_t row = before + inclusive - mine;
  for (int w = 0; w < warp; ++w) row += warp_sum[w];
  // How much of its row lies before this thread's pairs.
  int column = 0;
  while (column < width && begin - 1 - column >= 0 && begin < n &&
         pairs[begin - 1 - column].x < kLastPair) {
    ++column;
  }
  for (int64_t i = begin; i < end; ++i) {
    const int2 pair = pairs[i];
    const bool last = pair.x >= kLastPair;
    const int32_t slot = last ? pair.x - kLastPair : pair.x;
    const bool fits =
        row < rows && column < width && slot >= 0 && slot < slots_per_rank;
    const int64_t place = row * width + column;
    places[i] = fits ? static_cast<int32_t>(place) : -1;
    if (fits) {
      slots[place] = slot;
      weights[place] = __int_as_float(pair.y);
    }
    ++column;
    if (!last) continue;
    for (; row < rows && column < width; ++column) {
      slots[row * width + column] = -1;
      weights[row * width + column] = 0;
    }
    ++row;
    column = 0;
  }
}

__global__ void ScatterKernel(const float* __restrict__ values, int64_t n,
                              const int32_t* __restrict__ source,
                              const int32_t* __restrict__ choices, int k,
                              float* __restrict__ weights) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= n) return;
  const int32_t at = source[i];
  weights[at / k * k + choices[at]] = values[i];
}

LaunchShape PerItem(int64_t n) {
  return {.grid = unsigned((n + kBlock - 1) / kBlock), .block = kBlock};
}

}  // namespace

absl::Status MoeSlotsCuda(const Exec& exec, const MoeSlotsArgs& args) {
  return Launch(kOp, exec, PerItem(args.ids.dim(0)), SlotsKernel,
                args.ids.data<int32_t>(), args.ids.dim(0), args.ids.dim(1),
                args.destinations.dim(1), args.first_copy.dim(0) - 1,
                args.first_copy.data<int32_t>(), args.copies.data<int32_t>(),
                args.offsets.data<int32_t>(), args.row_of.data<int32_t>(),
                args.ep_rank, args.slots_per_rank, args.slots.data<int32_t>(),
                args.ranks.data<int32_t>(), args.choices.data<int32_t>(),
                args.destinations.data<int32_t>());
}

absl::Status MoePackPairsCuda(const Exec& exec, const MoePackPairsArgs& args) {
  return Launch(kOp, exec, PerItem(args.pairs.dim(0)), PackKernel,
                args.pair_source.data<int32_t>(), args.slots.data<int32_t>(),
                args.choices.data<int32_t>(), args.weights.data<float>(),
                args.weights.dim(1), args.pairs.dim(0),
                static_cast<int2*>(args.pairs.raw()));
}

absl::Status MoeUnpackPairsCuda(const Exec& exec,
                                const MoeUnpackPairsArgs& args) {
  const int64_t n = args.pairs.dim(0);
  const auto* const pairs = static_cast<const int2*>(args.pairs.raw());
  const LaunchShape shape = {.grid = unsigned(MoeUnpackWorkspace(n)),
                             .block = kBlock};
  CADRE_RETURN_IF_ERROR(Launch(kOp, exec, shape, CountRowsKernel, pairs, n,
                               args.workspace.data<int32_t>()));
  return Launch(kOp, exec, shape, UnpackKernel, pairs, n,
                args.workspace.data<int32_t>(), args.slots.dim(0),
                args.slots.dim(1), args.slots_per_rank,
                args.slots.data<int32_t>(), args.weights.data<float>(),
                args.places.data<int32_t>());
}

absl::Status MoeScatterPairsCuda(const Exec& exec,
                                 const MoeScatterPairsArgs& args) {
  return Launch(kOp, exec, PerItem(args.values.dim(0)), ScatterKernel,
                args.values.data<float>(), args.values.dim(0),
                args.pair_source.data<int32_t>(), args.choices.data<int32_t>(),
                args.weights.dim(1), args.weights.data<float>());
}

}  // namespace cadre
