// dK and dV: a block owns keys and walks the queries that read them.

#include "base/status_macros.h"
#include "kernels/attention/attention_wgmma.cuh"

namespace cadre::attention_device {
namespace {

constexpr int kKeys = 128;    // of a block; 64 a warpgroup
constexpr int kQueries = 64;  // of a step

template <int kQk, int kV, int kStages>
struct KeysTiles {
  // A chunk: 64 columns of all rows.
  static constexpr int kKeyChunk = kKeys * 128, kQueryChunk = kQueries * 128;
  static constexpr int kKBytes = kQk / 64 * kKeyChunk;
  static constexpr int kVBytes = kV / 64 * kKeyChunk;
  static constexpr int kQBytes = kQk / 64 * kQueryChunk;
  static constexpr int kDoBytes = kV / 64 * kQueryChunk;
  static constexpr int kStageBytes = kQBytes + kDoBytes;
  static constexpr int kSharedBytes =
      kAlignment + kKBytes + kVBytes + kStages * kStageBytes;
};

// What a step needs of its queries: log2 of the sum of exponentials, and Delta.
struct QueryRows {
  float lse[kQueries];
  float delta[kQueries];
};

// Writes factor x the rows of this lane, or zeros.
template <int kCols>
__device__ __forceinline__ void StoreRow(const float (&x)[kCols / 2], int half,
                                         float factor, bool zero, Bf16* row) {
#pragma unroll
  for (int j = 0; j < kCols / 8; ++j) {
    const uint32_t pair = PackPair(factor * x[4 * j + 2 * half],
                                   factor * x[4 * j + 2 * half + 1]);
    *reinterpret_cast<uint32_t*>(row + 8 * j + 2 * (threadIdx.x % 4)) =
        zero ? 0 : pair;
  }
}

// dK and dV of 128 keys of one key head; query heads that share it follow one
// another. Scores are formed with keys as rows, so that the probabilities and
// their gradients enter the sums over queries from registers.
template <int kQk, int kV, int kStages>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    KeysKernel(const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ CUtensorMap k_map,
               const __grid_constant__ CUtensorMap v_map,
               const __grid_constant__ CUtensorMap do_map,
               const __grid_constant__ Params<Bf16> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tiles = KeysTiles<kQk, kV, kStages>;
  constexpr bool kEarly = kQk + kV <= 256;
  extern __shared__ char shared[];
  __shared__ uint64_t keys_full, full[kStages], empty[kStages];
  __shared__ __align__(16) QueryRows rows[kStages];
  char* const k_tile = Align(shared);
  char* const v_tile = k_tile + Tiles::kKBytes;
  char* const stages = v_tile + Tiles::kVBytes;

  const int kv_head = blockIdx.y, heads = p.heads / p.kv_heads;
  const int first = static_cast<int>(blockIdx.x) * kKeys;
  const int real = static_cast<int>(p.Real());
  int end = first;  // of the queries that read these keys
  if (first < real) {
    const int last = min(first + kKeys, real) - 1;
    end = min(real, static_cast<int>(DocumentAt(p.cu, p.docs, last).end));
  }
  const int tiles = (end - first + kQueries - 1) / kQueries;

  if (threadIdx.x == 0) {
    BarrierInit(&keys_full, 1);
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&full[i], 32);
      BarrierInit(&empty[i], kComputeThreads);
    }
    BarrierInitFence();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    FewerRegisters<kLoadRegisters>();
    if (threadIdx.x >= 32 || tiles == 0) return;
    const int lane = threadIdx.x;
    if (lane == 0) {
      BarrierExpect(&keys_full, Tiles::kKBytes + Tiles::kVBytes);
      for (int i = 0; i < kQk / 64; ++i) {
        TmaLoad(k_tile + i * Tiles::kKeyChunk, &k_map, &keys_full, 64 * i,
                kv_head, first);
      }
      for (int i = 0; i < kV / 64; ++i) {
        TmaLoad(v_tile + i * Tiles::kKeyChunk, &v_map, &keys_full, 64 * i,
                kv_head, first);
      }
    }
    Ring<kStages> ring;
    for (int head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
      for (int tile = 0; tile < tiles; ++tile) {
        const int query = end - (tiles - tile) * kQueries;
        float lse[2] = {0, 0}, delta[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t t = query + lane + 32 * i;
          if (t < 0) continue;
          const int64_t row = t * p.heads + head;
          lse[i] = p.lse[row] * kLog2OfE;
          delta[i] = ParkedDelta(p.dq + row * kQk);
        }
        uint64_t* const bar = &full[ring.stage];
        BarrierWait(&empty[ring.stage], ring.phase ^ 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          rows[ring.stage].lse[lane + 32 * i] = lse[i];
          rows[ring.stage].delta[lane + 32 * i] = delta[i];
        }
        if (lane == 0) {
          char* const to = stages + ring.stage * Tiles::kStageBytes;
          BarrierExpect(bar, Tiles::kStageBytes);
          for (int i = 0; i < kQk / 64; ++i) {
            TmaLoad(to + i * Tiles::kQueryChunk, &q_map, bar, 64 * i, head,
                    query);
          }
          for (int i = 0; i < kV / 64; ++i) {
            TmaLoad(to + Tiles::kQBytes + i * Tiles::kQueryChunk, &do_map, bar,
                    64 * i, head, query);
          }
        } else {
          BarrierArrive(bar);
        }
        ring.Advance();
      }
    }
    return;
  }

  MoreRegisters<kComputeRegisters>();
  const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128 - 1, 0);
  const int lane = threadIdx.x % 32;
  // Rows of this lane: key0 and key0 + 8, read by queries before their ends.
  const int key0 = first + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int end0 = static_cast<int>(DocumentAt(p.cu, p.docs, key0).end);
  const int end1 = static_cast<int>(DocumentAt(p.cu, p.docs, key0 + 8).end);
  const int oldest_end = static_cast<int>(DocumentAt(p.cu, p.docs, first).end);
  const float factor = p.scale * kLog2OfE;
  const char* const my_k = k_tile + group * 64 * 128;
  const char* const my_v = v_tile + group * 64 * 128;

  float dk[kQk / 2], dv[kV / 2];
#pragma unroll
  for (int i = 0; i < kQk / 2; ++i) dk[i] = 0;
#pragma unroll
  for (int i = 0; i < kV / 2; ++i) dv[i] = 0;
  if (tiles > 0) BarrierWait(&keys_full, 0);
  Ring<kStages> ring;
  int query = end - tiles * kQueries;
  for (int step = 0; step < tiles * heads; ++step) {
    const char* const q_tile = stages + ring.stage * Tiles::kStageBytes;
    const char* const do_tile = q_tile + Tiles::kQBytes;
    const QueryRows& row = rows[ring.stage];
    BarrierWait(&full[ring.stage], ring.phase);

    uint32_t probs[kQueries / 4];
    float dp[kQueries / 2];
    const auto gradients = [&] {
      MultiplyShared<kQueries, kV / 64>(dp, my_v, Tiles::kKeyChunk, do_tile,
                                        Tiles::kQueryChunk);
      WgmmaCommit();
    };
    {
      float s[kQueries / 2];
      WgmmaFence();
      MultiplyShared<kQueries, kQk / 64>(s, my_k, Tiles::kKeyChunk, q_tile,
                                         Tiles::kQueryChunk);
      WgmmaCommit();
      if constexpr (kEarly) {
        gradients();
        WgmmaWait<1>();
      } else {
        WgmmaWait<0>();
      }
      Pin(s);
      if (query < first + kKeys - 1 || query + kQueries > oldest_end) {
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int t = query + 8 * j + 2 * (lane % 4) + e;
            if (t < key0 || t >= end0) s[4 * j + e] = -INFINITY;
            if (t < key0 + 8 || t >= end1) s[4 * j + 2 + e] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 lse =
            *reinterpret_cast<const float2*>(&row.lse[8 * j + 2 * (lane % 4)]);
        probs[2 * j] = PackPair(Exp2(s[4 * j] * factor - lse.x),
                                Exp2(s[4 * j + 1] * factor - lse.y));
        probs[2 * j + 1] = PackPair(Exp2(s[4 * j + 2] * factor - lse.x),
                                    Exp2(s[4 * j + 3] * factor - lse.y));
      }
    }
    WgmmaFence();
    if constexpr (!kEarly) gradients();
    MultiplyRegisters<kV, kQueries>(dv, probs, do_tile);
    WgmmaCommit();
    WgmmaWait<1>();
    Pin(dp);
    uint32_t ds[kQueries / 4];
#pragma unroll
    for (int j = 0; j < kQueries / 8; ++j) {
      const float2 delta =
          *reinterpret_cast<const float2*>(&row.delta[8 * j + 2 * (lane % 4)]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = probs[2 * j + i];
        ds[2 * j + i] =
            PackPair(LowHalf(pair) * (dp[4 * j + 2 * i] - delta.x),
                     HighHalf(pair) * (dp[4 * j + 2 * i + 1] - delta.y));
      }
    }
    WgmmaFence();
    MultiplyRegisters<kQk, kQueries>(dk, ds, q_tile);
    WgmmaCommit();
    WgmmaWait<0>();
    Pin(dv);
    Pin(dk);
    // Every reader of lse and Delta arrives for itself: one arrival a warp
    // would do as well, but racecheck does not follow that and reports hazards.
    BarrierArrive(&empty[ring.stage]);
    ring.Advance();
    query += kQueries;
    if (query >= end) query = end - tiles * kQueries;  // the next head
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t key = key0 + 8 * half;
    if (key >= p.tokens) continue;
    // A row of padding may have met anything.
    const bool zero = key >= real;
    StoreRow<kQk>(dk, half, p.scale, zero,
                  p.dk + (key * p.kv_heads + kv_head) * kQk);
    StoreRow<kV>(dv, half, 1.0f, zero,
                 p.dv + (key * p.kv_heads + kv_head) * kV);
  }
#endif
}

template <int kQk, int kV, int kStages>
absl::Status LaunchTile(const Exec& exec, const Params<Bf16>& p) {
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap q,
                         HeadMap(p.q, p.tokens, p.heads, kQk, kQueries));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap k,
                         HeadMap(p.k, p.tokens, p.kv_heads, kQk, kKeys));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap v,
                         HeadMap(p.v, p.tokens, p.kv_heads, kV, kKeys));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap d_o,
                         HeadMap(p.d_o, p.tokens, p.heads, kV, kQueries));
  return Launch(
      "attention", exec,
      {.grid = dim3(unsigned((p.tokens + kKeys - 1) / kKeys), p.kv_heads),
       .block = kWgmmaThreads,
       .shared_bytes = KeysTiles<kQk, kV, kStages>::kSharedBytes},
      KeysKernel<kQk, kV, kStages>, q, k, v, d_o, p);
}

}  // namespace

absl::Status KeysWgmma(const Exec& exec, const Params<Bf16>& p) {
  if (p.qk_dim == 192) return LaunchTile<192, 128, 3>(exec, p);
  return LaunchTile<128, 128, 4>(exec, p);
}

}  // namespace cadre::attention_device
