#include "base/status_macros.h"
#include "kernels/attention/attention_wgmma.cuh"

namespace cadre::attention_device {
namespace {

constexpr int kQueries = 128;  // of a block; 64 a warpgroup

template <int kQk, int kV, int kKeys, int kStages>
struct ForwardTiles {
  // A chunk: 64 columns of all rows.
  static constexpr int kQChunk = kQueries * 128, kKeyChunk = kKeys * 128;
  static constexpr int kQBytes = kQk / 64 * kQChunk;
  static constexpr int kKBytes = kQk / 64 * kKeyChunk;
  static constexpr int kVBytes = kV / 64 * kKeyChunk;
  static constexpr int kSharedBytes =
      kAlignment + kQBytes + kStages * (kKBytes + kVBytes);
};

// o and lse of 128 queries of one head, from the last keys to the first. The
// products of a warpgroup overlap with its own softmax (the scores of a step
// are on their way while the values of the step before are summed) and, as the
// warpgroups take turns in issuing them, with that of the other.
template <int kQk, int kV, int kKeys, int kStages>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    ForwardKernel(const __grid_constant__ CUtensorMap q_map,
                  const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map,
                  const __grid_constant__ Params<Bf16> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tiles = ForwardTiles<kQk, kV, kKeys, kStages>;
  extern __shared__ char shared[];
  __shared__ uint64_t q_full, k_full[kStages], k_empty[kStages],
      v_full[kStages], v_empty[kStages];
  char* const q_tile = Align(shared);
  char* const k_tiles = q_tile + Tiles::kQBytes;
  char* const v_tiles = k_tiles + kStages * Tiles::kKBytes;

  const int head = blockIdx.y, kv_head = p.KvHead(head);
  // Late tiles see the most keys: they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int real = static_cast<int>(p.Real());
  const int end = min(first + kQueries, real);  // of queries and of keys
  const int key_begin = FirstKey(p, first);
  const int steps = end > first ? (end - key_begin + kKeys - 1) / kKeys : 0;

  if (threadIdx.x == 0) {
    BarrierInit(&q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&k_full[i], 1);
      BarrierInit(&v_full[i], 1);
      BarrierInit(&k_empty[i], kComputeWarps);
      BarrierInit(&v_empty[i], kComputeWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    FewerRegisters<kLoadRegisters>();
    if (threadIdx.x != 0 || steps == 0) return;
    Ring<kStages> k_ring, v_ring;
    const auto load = [&](const CUtensorMap* map, char* tiles, int bytes,
                          uint64_t* full, uint64_t* empty, Ring<kStages>& ring,
                          int step) {
      BarrierWait(&empty[ring.stage], ring.phase ^ 1);
      BarrierExpect(&full[ring.stage], bytes);
      for (int i = 0; i < bytes / Tiles::kKeyChunk; ++i) {
        TmaLoad(tiles + ring.stage * bytes + i * Tiles::kKeyChunk, map,
                &full[ring.stage], 64 * i, kv_head, end - (step + 1) * kKeys);
      }
      ring.Advance();
    };
    BarrierExpect(&q_full, Tiles::kQBytes);
    for (int i = 0; i < kQk / 64; ++i) {
      TmaLoad(q_tile + i * Tiles::kQChunk, &q_map, &q_full, 64 * i, head,
              first);
    }
    // In the order in which stages come free.
    for (int step = 0; step <= steps; ++step) {
      if (step < steps) {
        load(&k_map, k_tiles, Tiles::kKBytes, k_full, k_empty, k_ring, step);
      }
      if (step > 0) {
        load(&v_map, v_tiles, Tiles::kVBytes, v_full, v_empty, v_ring,
             step - 1);
      }
    }
    return;
  }

  MoreRegisters<kComputeRegisters>();
  const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128 - 1, 0);
  const int lane = threadIdx.x % 32;
  // Rows of this lane: t0 and t0 + 8.
  const int t0 = first + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int t1 = t0 + 8;
  const int begin0 = FirstKey(p, t0), begin1 = FirstKey(p, t1);
  const int newest_begin = steps > 0 ? FirstKey(p, end - 1) : 0;
  const float factor = p.scale * kLog2OfE;

  float out[kV / 2], s[kKeys / 2];
  uint32_t probs[kKeys / 4];
#pragma unroll
  for (int i = 0; i < kV / 2; ++i) out[i] = 0;
  float max0 = -INFINITY, max1 = -INFINITY, sum0 = 0, sum1 = 0;
  float shrink0 = 1, shrink1 = 1;

  const auto scores = [&](int stage) {
    MultiplyShared<kKeys, kQk / 64>(
        s, q_tile + group * 64 * 128, Tiles::kQChunk,
        k_tiles + stage * Tiles::kKBytes, Tiles::kKeyChunk);
    WgmmaCommit();
  };
  const auto values = [&](int stage) {
    MultiplyRegisters<kV, kKeys>(out, probs, v_tiles + stage * Tiles::kVBytes);
    WgmmaCommit();
  };
  // Scores to probabilities, not yet divided by their sum.
  const auto softmax = [&](int step) {
    const int key = end - (step + 1) * kKeys;
    if (key + kKeys - 1 > first || key < newest_begin) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = key + 8 * j + 2 * (lane % 4) + e;
          if (column > t0 || column < begin0) s[4 * j + e] = -INFINITY;
          if (column > t1 || column < begin1) s[4 * j + 2 + e] = -INFINITY;
        }
      }
    }
    float new0 = max0, new1 = max1;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      new0 = fmaxf(new0, fmaxf(s[4 * j], s[4 * j + 1]));
      new1 = fmaxf(new1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      new0 = fmaxf(new0, __shfl_xor_sync(0xFFFFFFFF, new0, offset));
      new1 = fmaxf(new1, __shfl_xor_sync(0xFFFFFFFF, new1, offset));
    }
    // A row without a key so far: anything finite will do.
    const float base0 = new0 == -INFINITY ? 0 : new0 * factor;
    const float base1 = new1 == -INFINITY ? 0 : new1 * factor;
    shrink0 = Exp2(max0 * factor - base0);
    shrink1 = Exp2(max1 * factor - base1);
    max0 = new0;
    max1 = new1;
    sum0 *= shrink0;
    sum1 *= shrink1;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[4 * j + e] = Exp2(s[4 * j + e] * factor - base0);
        s[4 * j + 2 + e] = Exp2(s[4 * j + 2 + e] * factor - base1);
        sum0 += s[4 * j + e];
        sum1 += s[4 * j + 2 + e];
      }
    }
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      probs[i] = PackPair(s[2 * i], s[2 * i + 1]);
  };

  if (steps > 0) {
    Ring<kStages> k_ring, v_ring;
    constexpr int kTurn = 1;  // + warpgroup: the barrier that gives it the turn
    if (group == 1) NamedArrive(kTurn, kComputeThreads);
    BarrierWait(&q_full, 0);
    BarrierWait(&k_full[0], 0);
    WgmmaFence();
    scores(0);
    WgmmaWait<0>();
    Pin(s);
    Release(&k_empty[0]);
    k_ring.Advance();
    softmax(0);
    pack();
    for (int step = 1; step < steps; ++step) {
      BarrierWait(&k_full[k_ring.stage], k_ring.phase);
      NamedSync(kTurn + group, kComputeThreads);
      WgmmaFence();
      scores(k_ring.stage);
      BarrierWait(&v_full[v_ring.stage], v_ring.phase);
      values(v_ring.stage);
      // Nobody waits for the turn after the last one.
      if (group == 0 || step + 1 < steps)
        NamedArrive(kTurn + (group ^ 1), kComputeThreads);
      WgmmaWait<1>();
      Pin(s);
      Release(&k_empty[k_ring.stage]);
      k_ring.Advance();
      softmax(step);
      WgmmaWait<0>();
      Pin(out);
      Release(&v_empty[v_ring.stage]);
      v_ring.Advance();
#pragma unroll
      for (int j = 0; j < kV / 8; ++j) {
        out[4 * j] *= shrink0;
        out[4 * j + 1] *= shrink0;
        out[4 * j + 2] *= shrink1;
        out[4 * j + 3] *= shrink1;
      }
      pack();
    }
    // With one step the first turn was never taken.
    if (group == 0 && steps == 1) NamedSync(kTurn, kComputeThreads);
    BarrierWait(&v_full[v_ring.stage], v_ring.phase);
    WgmmaFence();
    values(v_ring.stage);
    WgmmaWait<0>();
    Pin(out);
  }

#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    sum0 += __shfl_xor_sync(0xFFFFFFFF, sum0, offset);
    sum1 += __shfl_xor_sync(0xFFFFFFFF, sum1, offset);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = half == 0 ? t0 : t1;
    if (t >= p.tokens) continue;
    // A row of padding may have met anything.
    const bool filled = t < real;
    const float sum = half == 0 ? sum0 : sum1;
    const float top = half == 0 ? max0 : max1;
    const float inverse = 1.0f / sum;
    if (lane % 4 == 0) {
      p.lse[t * p.heads + head] =
          filled ? top * p.scale + logf(sum) : -INFINITY;
    }
    Bf16* const o = p.out + t * p.OPitch() + head * kV + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kV / 8; ++j) {
      const uint32_t pair = PackPair(out[4 * j + 2 * half] * inverse,
                                     out[4 * j + 2 * half + 1] * inverse);
      *reinterpret_cast<uint32_t*>(o + 8 * j) = filled ? pair : 0;
    }
  }
#endif
}

template <int kQk, int kV, int kKeys, int kStages>
absl::Status LaunchTile(const Exec& exec, const Params<Bf16>& p) {
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap q,
                         HeadMap(p.q, p.tokens, p.heads, kQk, kQueries));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap k,
                         HeadMap(p.k, p.tokens, p.kv_heads, kQk, kKeys));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap v,
                         HeadMap(p.v, p.tokens, p.kv_heads, kV, kKeys));
  return Launch(
      "attention", exec,
      {.grid = dim3(unsigned((p.tokens + kQueries - 1) / kQueries), p.heads),
       .block = kWgmmaThreads,
       .shared_bytes = ForwardTiles<kQk, kV, kKeys, kStages>::kSharedBytes},
      ForwardKernel<kQk, kV, kKeys, kStages>, q, k, v, p);
}

}  // namespace

bool ForwardWgmmaTakes(const Params<Bf16>& p) {
  const bool compiled = (p.qk_dim == 192 && p.v_dim == 128) ||
                        (p.qk_dim == 128 && p.v_dim == 128) ||
                        (p.qk_dim == 256 && p.v_dim == 256);
  return compiled && WgmmaTakes(p);
}

absl::Status ForwardWgmma(const Exec& exec, const Params<Bf16>& p) {
  if (p.v_dim == 256) return LaunchTile<256, 256, 80, 2>(exec, p);
  if (p.qk_dim == 192) return LaunchTile<192, 128, 128, 2>(exec, p);
  return LaunchTile<128, 128, 128, 2>(exec, p);
}

}  // namespace cadre::attention_device
