// Experts' capacity on CUDA. Pairs (token, place) that claim an expert are
// brought into its order by MoePermute, in which they lie by token and place; a
// block a expert then takes the best of its claims. Admission is one such
// round, with the router's choices as claims; remapping is kRemapRounds more,
// in which the tokens that lost pairs claim their next best experts.

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/moe_permute/moe_permute.h"
#include "kernels/router/router_device.cuh"
#include "kernels/router/router_overflow.h"

namespace cadre {
namespace {

using namespace router_device;  // NOLINT: one file's private helpers

constexpr char kOp[] = "router overflow";
constexpr int kBlock = 256;
constexpr int kRadix = 256;

// The parts of the workspace. P = tokens top_k pairs, C candidates of a token.
struct Workspace {
  unsigned long long* refused;  // [T]: bit c for candidate c
  int32_t* candidates;          // [T,C], best first; -1 beyond the eligible
  float* candidate_scores;      // [T,C]
  int32_t* claims;              // [P]: the expert that a pair asks for, or -1
  float* claim_scores;          // [P]
  int32_t* claim_places;        // [P]: the claim's place among the candidates
  int32_t* row_source;          // [P]
  int32_t* row_of;              // [P]
  int32_t* offsets;             // [E+1]
  int32_t* load;                // [E]: pairs that the expert has taken

  Workspace(void* memory, int64_t tokens, int64_t top_k, int64_t experts) {
    refused = static_cast<unsigned long long*>(memory);
    char* next = reinterpret_cast<char*>(refused + tokens);
    const auto take = [&next](auto** part, int64_t n) {
      *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(next);
      next += n * 4;
    };
    const int64_t pairs = tokens * top_k;
    take(&candidates, tokens * (top_k + kRemapRounds));
    take(&candidate_scores, tokens * (top_k + kRemapRounds));
    take(&claims, pairs);
    take(&claim_scores, pairs);
    take(&claim_places, pairs);
    take(&row_source, pairs);
    take(&row_of, pairs);
    take(&offsets, experts + 1);
    take(&load, experts);
  }
};

// The same order as that of the numbers; -0 is +0.
__device__ __forceinline__ uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Whether this thread's is among the first `limit` set flags of the block, of
// which `seen` came in earlier calls; adds this call's to it.
__device__ bool AmongFirst(bool flag, int limit, int* seen) {
  __shared__ int warp_count[kBlock / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned set = __ballot_sync(0xffffffffu, flag);
  if (lane == 0) warp_count[warp] = __popc(set);
  __syncthreads();
  int before = *seen + __popc(set & ((1u << lane) - 1)), all = *seen;
  for (int w = 0; w < kBlock / 32; ++w) {
    if (w < warp) before += warp_count[w];
    all += warp_count[w];
  }
  __syncthreads();
  *seen = all;
  return flag && before < limit;
}

// The `wanted`-th largest key of claims [begin, end), digit by digit from the
// top; *ties is how many claims with just that key are wanted. 0 < wanted <=
// end - begin.
__device__ uint32_t Threshold(const Workspace& w, int begin, int end,
                              int wanted, int* ties) {
  __shared__ int count[kRadix];
  __shared__ uint32_t found;
  __shared__ int left;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    count[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int i = begin + threadIdx.x; i < end; i += kBlock) {
      const uint32_t key = Ordered(w.claim_scores[w.row_source[i]]);
      if ((key & above) == prefix) atomicAdd(&count[key >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kRadix - 1;
      while (count[digit] < wanted) wanted -= count[digit--];
      found = prefix | uint32_t(digit) << shift;
      left = wanted;
    }
    __syncthreads();
    prefix = found;
    wanted = left;
    __syncthreads();
  }
  *ties = wanted;
  return prefix;
}

// A block is an expert. It takes the best of its claims up to its room, by
// score, then in their order. `places` false: the first round, whose claims are
// the router's; the refused ones lose their expert.
__global__ void __launch_bounds__(kBlock)
    TakeKernel(Workspace w, int top_k, int64_t capacity, bool first_round,
               int32_t* routed, unsigned long long* counts, int count_place) {
  const int e = blockIdx.x;
  const int begin = w.offsets[e], end = w.offsets[e + 1];
  const int load = first_round ? 0 : w.load[e];
  const int room = int(min(int64_t(end - begin), capacity - load));
  uint32_t least = 0;
  int ties = end - begin;
  if (room == 0) {
    least = ~0u;
    ties = 0;
  } else if (room < end - begin) {
    least = Threshold(w, begin, end, room, &ties);
  }
  int seen = 0;
  for (int base = begin; base < end; base += kBlock) {
    const int i = base + threadIdx.x;
    const int32_t pair = i < end ? w.row_source[i] : -1;
    const uint32_t key = pair < 0 ? 0 : Ordered(w.claim_scores[pair]);
    const bool tie = AmongFirst(pair >= 0 && key == least, ties, &seen);
    if (pair < 0) continue;
    if (room > 0 && (key > least || tie)) {
      routed[pair] = e;
    } else if (first_round) {
      routed[pair] = -1;
    } else {
      // Pairs of one token may be refused by several experts at once.
      atomicOr(&w.refused[pair / top_k], 1ull << w.claim_places[pair]);
    }
  }
  if (threadIdx.x == 0) {
    w.load[e] = load + room;
    const auto added =
        static_cast<unsigned long long>(first_round ? end - begin : room);
    if (added > 0) atomicAdd(counts + count_place, added);
  }
}

__global__ void __launch_bounds__(kBlock)
    FirstClaimsKernel(Workspace w, const float* __restrict__ weights,
                      bool by_weight, int64_t tokens, int64_t pairs,
                      float* weight_sum) {
  const int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (i < pairs) w.claim_scores[i] = by_weight ? weights[i] : 0.0f;
  if (i < tokens) {
    weight_sum[i] = -1;
    w.refused[i] = 0;
  }
}

__device__ bool LostAny(const int32_t* ids, const int32_t* routed, int k) {
  for (int i = 0; i < k; ++i)
    if (ids[i] >= 0 && routed[i] < 0) return true;
  return false;
}

// What the tokens that lost pairs may choose from; a warp is a token. Shared
// memory of a warp: choice [E], and one score for each group.
__global__ void __launch_bounds__(32 * kWarps)
    CandidatesKernel(Workspace w, Options o, const float* __restrict__ logits,
                     const float* __restrict__ bias,
                     const int32_t* __restrict__ ids,
                     const int32_t* __restrict__ routed, int64_t tokens, int n,
                     int k, int candidates) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const choice = shared + warp * (n + o.groups);
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens || !LostAny(ids + t * k, routed + t * k, k)) return;
  Scores(o.softmax, logits + t * n, n, choice, lane);
  if (bias != nullptr) {
    for (int e = lane; e < n; e += 32) choice[e] += bias[e];
    __syncwarp();
  }
  if (o.groups > 1) CloseOtherGroups(o, choice, n, choice + n, lane);
  const int eligible = n / o.groups * o.topk_groups;
  for (int c = 0; c < candidates; ++c) {
    int e = -1;
    float score = 0;
    if (c < eligible) {
      // TakeLargest closes the place, so the score is found before.
      float largest = -INFINITY;
      for (int i = lane; i < n; i += 32) largest = fmaxf(largest, choice[i]);
      score = WarpMax(largest);
      e = TakeLargest(choice, n, lane);
    }
    if (lane == 0) {
      w.candidates[t * candidates + c] = e;
      w.candidate_scores[t * candidates + c] = score;
    }
  }
}

__device__ bool Holds(const int32_t* routed, int k, int32_t e) {
  for (int i = 0; i < k; ++i)
    if (routed[i] == e) return true;
  return false;
}

// A thread is a token: its lost pairs, the heaviest first, ask for different
// experts with room.
__global__ void __launch_bounds__(kBlock)
    ClaimKernel(Workspace w, const int32_t* __restrict__ ids,
                const int32_t* __restrict__ routed,
                const float* __restrict__ weights, int64_t tokens, int k,
                int candidates, int64_t capacity) {
  const int64_t t = int64_t(blockIdx.x) * kBlock + threadIdx.x;
  if (t >= tokens) return;
  for (int i = 0; i < k; ++i) w.claims[t * k + i] = -1;
  const int32_t* const mine = routed + t * k;
  if (!LostAny(ids + t * k, mine, k)) return;
  const unsigned long long refused = w.refused[t];
  unsigned long long chosen = 0;  // pairs that have had their turn
  int next = 0;
  while (true) {
    int pair = -1;
    for (int i = 0; i < k; ++i) {
      if (ids[t * k + i] < 0 || mine[i] >= 0 || chosen >> i & 1) continue;
      if (pair < 0 || weights[t * k + i] > weights[t * k + pair]) pair = i;
    }
    if (pair < 0) return;
    chosen |= 1ull << pair;
    for (; next < candidates; ++next) {
      const int32_t e = w.candidates[t * candidates + next];
      if (e >= 0 && !(refused >> next & 1) && w.load[e] < capacity &&
          !Holds(mine, k, e)) {
        break;
      }
    }
    if (next == candidates) return;
    w.claims[t * k + pair] = w.candidates[t * candidates + next];
    w.claim_scores[t * k + pair] = w.candidate_scores[t * candidates + next];
    w.claim_places[t * k + pair] = next++;
  }
}

// A warp is a token: weights of moved and of dropped pairs. Shared memory of a
// warp: scores [E].
__global__ void __launch_bounds__(32 * kWarps)
    ReweighKernel(Options o, const float* __restrict__ logits,
                  const int32_t* __restrict__ ids,
                  const int32_t* __restrict__ routed, int64_t tokens, int n,
                  int k, float* weights, float* weight_sum,
                  unsigned long long* counts) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* const score = shared + warp * n;
  const int64_t t = int64_t(blockIdx.x) * kWarps + warp;
  if (t >= tokens) return;
  const int32_t* const from = ids + t * k;
  const int32_t* const to = routed + t * k;
  float* const weight = weights + t * k;
  bool moved = false;
  int dropped = 0;
  for (int i = 0; i < k; ++i) {
    moved = moved || (to[i] >= 0 && to[i] != from[i]);
    dropped += from[i] >= 0 && to[i] < 0;
  }
  if (moved) {
    Scores(o.softmax, logits + t * n, n, score, lane);
    float before = 0, total = 0;
    for (int i = 0; i < k; ++i) {
      if (to[i] < 0) continue;
      before += weight[i];
      total += score[to[i]];
    }
    __syncwarp();  // all have read the weights
    for (int i = lane; i < k; i += 32)
      if (to[i] >= 0) weight[i] = __fdiv_rn(before * score[to[i]], total);
    if (lane == 0) weight_sum[t] = before;
  }
  if (dropped == 0) return;
  for (int i = lane; i < k; i += 32)
    if (from[i] >= 0 && to[i] < 0) weight[i] = 0;
  if (lane == 0)
    atomicAdd(counts + kDroppedPairs, static_cast<unsigned long long>(dropped));
}

}  // namespace

absl::Status RouterOverflowCuda(const Exec& exec,
                                const RouterOverflowArgs& args) {
  const int64_t tokens = args.ids.dim(0), k = args.ids.dim(1);
  const int64_t experts = args.logits.dim(1), pairs = tokens * k;
  const int64_t candidates = k + kRemapRounds;
  const Options options = ToDevice(args.options);
  const Workspace w(args.workspace.raw(), tokens, k, experts);
  const float* const logits = args.logits.data<float>();
  const int32_t* const ids = args.ids.data<int32_t>();
  int32_t* const routed = args.routed_ids.data<int32_t>();
  float* const weights = args.weights.data<float>();
  float* const weight_sum = args.weight_sum.data<float>();
  auto* const counts = static_cast<unsigned long long*>(args.counts.raw());
  CADRE_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(counts, 0, args.counts.num_bytes(), StreamOf(exec)),
      "router overflow: clearing counts"));
  if (pairs == 0) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(routed, ids, args.ids.num_bytes(),
                                 cudaMemcpyDeviceToDevice, StreamOf(exec)),
                 "router overflow: copying ids"));
  const auto blocks = [](int64_t n) {
    return LaunchShape{.grid = unsigned((n + kBlock - 1) / kBlock),
                       .block = kBlock};
  };
  const auto take = [&](const Tensor& claims, bool first, int count_place) {
    CADRE_RETURN_IF_ERROR(MoePermute(
        exec, {.ids = claims,
               .offsets = Tensor(w.offsets, DType::kI32, {experts + 1}),
               .row_source = Tensor(w.row_source, DType::kI32, {pairs}),
               .row_of = Tensor(w.row_of, DType::kI32, {tokens, k})}));
    return Launch(kOp, exec, {.grid = unsigned(experts), .block = kBlock},
                  TakeKernel, w, k, args.capacity, first, routed, counts,
                  count_place);
  };
  CADRE_RETURN_IF_ERROR(Launch(kOp, exec, blocks(pairs), FirstClaimsKernel, w,
                               weights,
                               args.policy != OverflowPolicy::kDropByPosition,
                               tokens, pairs, weight_sum));
  CADRE_RETURN_IF_ERROR(take(args.ids, /*first=*/true, kRoutedPairs));
  if (args.policy == OverflowPolicy::kRemap) {
    CADRE_RETURN_IF_ERROR(Launch(
        kOp, exec, ShapeFor(tokens, experts + options.groups), CandidatesKernel,
        w, options, logits, args.correction_bias.data<float>(), ids, routed,
        tokens, experts, k, candidates));
    // The host does not know when nobody asks any more: rounds without a claim
    // do nothing.
    for (int round = 0; round < kRemapRounds; ++round) {
      CADRE_RETURN_IF_ERROR(Launch(kOp, exec, blocks(tokens), ClaimKernel, w,
                                   ids, routed, weights, tokens, k, candidates,
                                   args.capacity));
      CADRE_RETURN_IF_ERROR(take(Tensor(w.claims, DType::kI32, {tokens, k}),
                                 /*first=*/false, kRemappedPairs + round));
    }
  }
  return Launch(kOp, exec, ShapeFor(tokens, experts), ReweighKernel, options,
                logits, ids, routed, tokens, experts, k, weights, weight_sum,
                counts);
}

}  // namespace cadre
