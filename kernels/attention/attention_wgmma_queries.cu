// Delta and dQ: a block owns queries and walks the keys that they read.

#include "base/status_macros.h"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/common/vec.cuh"

namespace cadre::attention_device {
namespace {

constexpr char kOp[] = "attention";
constexpr int kQueries = 128;  // of a block; 64 a warpgroup

// kV / 8 lanes share a query and head, 8 columns each.
template <int kV>
__global__ void __launch_bounds__(256)
    DeltaKernel(const __grid_constant__ Params<Bf16> p) {
  constexpr int kLanes = kV / 8;
  const int64_t item =
      int64_t(blockIdx.x) * (256 / kLanes) + threadIdx.x / kLanes;
  const int part = threadIdx.x % kLanes;
  const bool mine = item < p.Real() * p.heads;
  float sum = 0;
  if (mine) {
    float o[8], d_o[8];
    LoadVec<8>(p.o + item * kV + 8 * part, o);
    LoadVec<8>(p.d_o + item * kV + 8 * part, d_o);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += o[i] * d_o[i];
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
  if (mine && part == 0) ParkDelta(p.dq + item * p.qk_dim, sum);
}

template <int kQk, int kV, int kKeys>
struct QueriesTiles {
  // A chunk: 64 columns of all rows.
  static constexpr int kQueryChunk = kQueries * 128, kKeyChunk = kKeys * 128;
  static constexpr int kQBytes = kQk / 64 * kQueryChunk;
  static constexpr int kDoBytes = kV / 64 * kQueryChunk;
  static constexpr int kKBytes = kQk / 64 * kKeyChunk;
  static constexpr int kVBytes = kV / 64 * kKeyChunk;
  // Keys are held until dQ has taken them up, a step later than values.
  static constexpr int kKStages = 3, kVStages = 2;
  static constexpr int kSharedBytes =
      kAlignment + kQBytes + kDoBytes + kKStages * kKBytes + kVStages * kVBytes;
};

// dQ of 128 queries of one head. The scores of a step are on their way while
// dQ takes up the step before.
template <int kQk, int kV, int kKeys>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    QueriesKernel(const __grid_constant__ CUtensorMap q_map,
                  const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map,
                  const __grid_constant__ CUtensorMap do_map,
                  const __grid_constant__ Params<Bf16> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tiles = QueriesTiles<kQk, kV, kKeys>;
  constexpr int kKStages = Tiles::kKStages, kVStages = Tiles::kVStages;
  extern __shared__ char shared[];
  __shared__ uint64_t queries_full, k_full[kKStages], k_empty[kKStages],
      v_full[kVStages], v_empty[kVStages];
  char* const q_tile = Align(shared);
  char* const do_tile = q_tile + Tiles::kQBytes;
  char* const k_tiles = do_tile + Tiles::kDoBytes;
  char* const v_tiles = k_tiles + kKStages * Tiles::kKBytes;

  const int head = blockIdx.y, kv_head = p.KvHead(head);
  // Late tiles see the most keys: they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int real = static_cast<int>(p.Real());
  const int end = min(first + kQueries, real);  // of queries and of keys
  const int key_begin = FirstKey(p, first);
  const int steps = end > first ? (end - key_begin + kKeys - 1) / kKeys : 0;

  if (threadIdx.x == 0) {
    BarrierInit(&queries_full, 1);
    for (int i = 0; i < kKStages; ++i) {
      BarrierInit(&k_full[i], 1);
      BarrierInit(&k_empty[i], kComputeWarps);
    }
    for (int i = 0; i < kVStages; ++i) {
      BarrierInit(&v_full[i], 1);
      BarrierInit(&v_empty[i], kComputeWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    FewerRegisters<kLoadRegisters>();
    if (threadIdx.x != 0 || steps == 0) return;
    const auto load = [&](char* to, const CUtensorMap* map, uint64_t* full,
                          int bytes, int chunk, int from_head, int from) {
      BarrierExpect(full, bytes);
      for (int i = 0; i < bytes / chunk; ++i) {
        TmaLoad(to + i * chunk, map, full, 64 * i, from_head, from);
      }
    };
    BarrierExpect(&queries_full, Tiles::kQBytes + Tiles::kDoBytes);
    for (int i = 0; i < kQk / 64; ++i) {
      TmaLoad(q_tile + i * Tiles::kQueryChunk, &q_map, &queries_full, 64 * i,
              head, first);
    }
    for (int i = 0; i < kV / 64; ++i) {
      TmaLoad(do_tile + i * Tiles::kQueryChunk, &do_map, &queries_full, 64 * i,
              head, first);
    }
    Ring<kKStages> k_ring;
    Ring<kVStages> v_ring;
    for (int step = 0; step < steps; ++step) {
      const int key = end - (step + 1) * kKeys;
      BarrierWait(&k_empty[k_ring.stage], k_ring.phase ^ 1);
      load(k_tiles + k_ring.stage * Tiles::kKBytes, &k_map,
           &k_full[k_ring.stage], Tiles::kKBytes, Tiles::kKeyChunk, kv_head,
           key);
      k_ring.Advance();
      BarrierWait(&v_empty[v_ring.stage], v_ring.phase ^ 1);
      load(v_tiles + v_ring.stage * Tiles::kVBytes, &v_map,
           &v_full[v_ring.stage], Tiles::kVBytes, Tiles::kKeyChunk, kv_head,
           key);
      v_ring.Advance();
    }
    return;
  }

  MoreRegisters<kComputeRegisters>();
  const int group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128 - 1, 0);
  const int lane = threadIdx.x % 32;
  // Rows of this lane: t0 and t0 + 8. Their parked deltas are read before any
  // row is written.
  const int t0 = first + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int t1 = t0 + 8;
  const int begin0 = FirstKey(p, t0), begin1 = FirstKey(p, t1);
  const int newest_begin = steps > 0 ? FirstKey(p, end - 1) : 0;
  float lse0 = 0, lse1 = 0, delta0 = 0, delta1 = 0;
  if (t0 < real) {
    const int64_t row = int64_t(t0) * p.heads + head;
    lse0 = p.lse[row] * kLog2OfE;
    delta0 = ParkedDelta(p.dq + row * kQk);
  }
  if (t1 < real) {
    const int64_t row = int64_t(t1) * p.heads + head;
    lse1 = p.lse[row] * kLog2OfE;
    delta1 = ParkedDelta(p.dq + row * kQk);
  }
  const float factor = p.scale * kLog2OfE;

  float dq[kQk / 2], s[kKeys / 2], dp[kKeys / 2];
  uint32_t ds[kKeys / 4];
#pragma unroll
  for (int i = 0; i < kQk / 2; ++i) dq[i] = 0;
  Ring<kKStages> k_ring, dq_ring;
  Ring<kVStages> v_ring;
  // Two groups of products: scores, gradients of the probabilities.
  const auto scores = [&] {
    MultiplyShared<kKeys, kQk / 64>(
        s, q_tile + group * 64 * 128, Tiles::kQueryChunk,
        k_tiles + k_ring.stage * Tiles::kKBytes, Tiles::kKeyChunk);
    WgmmaCommit();
    MultiplyShared<kKeys, kV / 64>(
        dp, do_tile + group * 64 * 128, Tiles::kQueryChunk,
        v_tiles + v_ring.stage * Tiles::kVBytes, Tiles::kKeyChunk);
    WgmmaCommit();
  };
  const auto sum = [&] {
    MultiplyRegisters<kQk, kKeys>(dq, ds,
                                  k_tiles + dq_ring.stage * Tiles::kKBytes);
    WgmmaCommit();
  };
  // s becomes the probabilities.
  const auto probabilities = [&](int step) {
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
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[4 * j + e] = Exp2(s[4 * j + e] * factor - lse0);
        s[4 * j + 2 + e] = Exp2(s[4 * j + 2 + e] * factor - lse1);
      }
    }
  };
  // s becomes the gradients of the scores.
  const auto gradients = [&] {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[4 * j + e] *= dp[4 * j + e] - delta0;
        s[4 * j + 2 + e] *= dp[4 * j + 2 + e] - delta1;
      }
    }
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      ds[i] = PackPair(s[2 * i], s[2 * i + 1]);
  };

  if (steps > 0) {
    BarrierWait(&queries_full, 0);
    BarrierWait(&k_full[0], 0);
    BarrierWait(&v_full[0], 0);
    WgmmaFence();
    scores();
    WgmmaWait<1>();
    Pin(s);
    probabilities(0);
    WgmmaWait<0>();
    Pin(dp);
    Release(&v_empty[0]);
    k_ring.Advance();
    v_ring.Advance();
    gradients();
    pack();
    for (int step = 1; step < steps; ++step) {
      BarrierWait(&k_full[k_ring.stage], k_ring.phase);
      BarrierWait(&v_full[v_ring.stage], v_ring.phase);
      WgmmaFence();
      scores();
      sum();
      WgmmaWait<2>();
      Pin(s);
      probabilities(step);
      WgmmaWait<1>();
      Pin(dp);
      Release(&v_empty[v_ring.stage]);
      k_ring.Advance();
      v_ring.Advance();
      gradients();
      WgmmaWait<0>();
      Pin(dq);
      Release(&k_empty[dq_ring.stage]);
      dq_ring.Advance();
      pack();
    }
    WgmmaFence();
    sum();
    WgmmaWait<0>();
    Pin(dq);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = half == 0 ? t0 : t1;
    if (t >= p.tokens) continue;
    // A row of padding may have met anything.
    const float scale = t < real ? p.scale : 0;
    Bf16* const row = p.dq + (t * p.heads + head) * kQk + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kQk / 8; ++j) {
      const uint32_t pair = PackPair(scale * dq[4 * j + 2 * half],
                                     scale * dq[4 * j + 2 * half + 1]);
      *reinterpret_cast<uint32_t*>(row + 8 * j) = t < real ? pair : 0;
    }
  }
#endif
}

template <int kQk, int kV, int kKeys>
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
      kOp, exec,
      {.grid = dim3(unsigned((p.tokens + kQueries - 1) / kQueries), p.heads),
       .block = kWgmmaThreads,
       .shared_bytes = QueriesTiles<kQk, kV, kKeys>::kSharedBytes},
      QueriesKernel<kQk, kV, kKeys>, q, k, v, d_o, p);
}

}  // namespace

absl::Status QueriesWgmma(const Exec& exec, const Params<Bf16>& p) {
  if (p.qk_dim == 192) return LaunchTile<192, 128, 80>(exec, p);
  return LaunchTile<128, 128, 96>(exec, p);
}

absl::Status DeltaWgmma(const Exec& exec, const Params<Bf16>& p) {
  constexpr int kV = 128, kItems = 256 / (kV / 8);
  return Launch(
      kOp, exec,
      {.grid = dim3(unsigned((p.tokens * p.heads + kItems - 1) / kItems)),
       .block = 256},
      DeltaKernel<kV>, p);
}

bool BackwardWgmmaTakes(const Params<Bf16>& p) {
  return (p.qk_dim == 192 || p.qk_dim == 128) && p.v_dim == 128 &&
         WgmmaTakes(p);
}

absl::Status BackwardWgmma(const Exec& exec, const Params<Bf16>& p) {
  CADRE_RETURN_IF_ERROR(DeltaWgmma(exec, p));
  CADRE_RETURN_IF_ERROR(KeysWgmma(exec, p));
  return QueriesWgmma(exec, p);
}

}  // namespace cadre::attention_device
