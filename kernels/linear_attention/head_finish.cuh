#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_CUH_

// finish.cuh for a decay of the whole head, with exp(G_i - G_j) as a factor of
// the score matrices' entries instead of their operands:
//
//   Dqk_ij = K^-1/2 dAqk_ij exp(G_i - G_j)     Dkk_ij = beta_i dAkk_ij exp(..)
//   dq = dq1 + Dqk k
//   dk = dkN + beta exp(G) k' + Dqk^T q + (Dkk + Dkk^T) k
//   dG_i = <q_i, dq1_i> + <k_i, beta exp(G) k'_i - dkN_i>
//          + sum_j P_ij - sum_j P_ji,     P = Dqk (q k^T) + Dkk (k k^T)
//   dbeta as there, <ak_i, k_i> being sum_j Dkk_ij (k k^T)_ij / beta_i
// and in the last row of dG exp(Gn) <S, dS> + sum <k_i, dkN_i>.
//
// One block of two warpgroups for each (chunk, key head); it works through the
// value heads of that. The first warpgroup has dq and the scores, the second
// dk and dv. Device code; private to kernels/gdn.

#include "kernels/linear_attention/head_finish_keys.cuh"
#include "kernels/linear_attention/head_finish_scores.cuh"
#include "kernels/linear_attention/head_finish_tiles.cuh"

namespace cadre::linear_attention {

// The tiles of the scan, dO, and G.
__device__ __forceinline__ void LoadHeadStates(const Problem& p,
                                               const Chunk& chunk, int head,
                                               int64_t tile, int phase,
                                               HeadFinishSmem& smem) {
  uint64_t* loaded = &smem.loaded[0];
  if (threadIdx.x == 0) {
    BarrierExpect(loaded, 2 * (2 * kState + 2 * kTile));
    BulkCopy(smem.s, p.s + tile * kState, kState * 2, loaded);
    BulkCopy(smem.ds, p.ds + tile * kState, kState * 2, loaded);
    BulkCopy(smem.x, p.u + tile * kTile, kTile * 2, loaded);
    BulkCopy(smem.dx, p.dx + tile * kTile, kTile * 2, loaded);
  }
  CopyWide<kHeadFinishThreads>(smem.d_o, p.d_o + p.row(chunk.begin, head),
                               p.pitch(), chunk.length);
  CopyAsyncCommit();
  if (threadIdx.x < 32) SumHeadDecays(p, chunk, head, smem.rows);
  CopyAsyncWait<0>();
  FenceAsyncShared();
  BarrierWait(loaded, phase);
  __syncthreads();
}

// The inverse, v, k and q on their way to where the states were.
__device__ __forceinline__ void StartHeadKeys(const Problem& p,
                                              const Chunk& chunk, int head,
                                              int64_t tile,
                                              HeadFinishSmem& smem) {
  if (threadIdx.x == 0) {
    BarrierExpect(&smem.loaded[1], kSquare * 2);
    BulkCopy(smem.inverse, p.inverse + tile * kSquare, kSquare * 2,
             &smem.loaded[1]);
  }
  const int64_t keys = p.key_row(chunk.begin, head);
  CopyWide<kHeadFinishThreads>(smem.k, p.k + keys, p.key_pitch(), chunk.length);
  CopyWide<kHeadFinishThreads>(smem.v, p.v + p.row(chunk.begin, head),
                               p.pitch(), chunk.length);
  CopyWide<kHeadFinishThreads>(smem.q, p.q + keys, p.key_pitch(), chunk.length);
  CopyAsyncCommit();
}

// <S, dS>: both tiles are permuted alike.
__device__ __forceinline__ void SumHeadStates(HeadFinishSmem& smem) {
  const uint4* s = reinterpret_cast<const uint4*>(smem.s);
  const uint4* ds = reinterpret_cast<const uint4*>(smem.ds);
  const int tid = ThreadIndexAgain();
  float sum = 0;
  const auto add = [&sum](uint32_t a, uint32_t b) {
    sum += Low(a) * Low(b) + High(a) * High(b);
  };
#pragma unroll
  for (int i = 0; i < kState / 8 / kHeadFinishThreads; ++i) {
    const uint4 a = s[i * kHeadFinishThreads + tid];
    const uint4 b = ds[i * kHeadFinishThreads + tid];
    add(a.x, b.x);
    add(a.y, b.y);
    add(a.z, b.z);
    add(a.w, b.w);
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  if ((tid & 31) == 0) smem.states[tid >> 5] = sum;
}

// By the first warp, when all sums are there: da, dbeta and the tile's shares
// of the gradients of a_log and dt_bias.
__device__ __forceinline__ void WriteHeadGate(const Problem& p,
                                              const Chunk& chunk, int head,
                                              int64_t tile,
                                              const FinishOutput& out,
                                              const HeadFinishSmem& smem) {
  const int lane = ThreadIndexAgain() & 31;
  float last = 0;
  for (int i = 0; i < 8; ++i) last += smem.states[i];
  last *= Exp2(smem.rows.g[kChunk - 1]);
  for (int i = 0; i < 4; ++i) last += smem.kept[i];
  float dg[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane + 32 * half;
    dg[half] = smem.sums.dg[0][row] + smem.sums.dg[1][row];
    for (int i = 0; i < 4; ++i) dg[half] -= smem.columns[i][row];
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float other = __shfl_down_sync(0xffffffffu, dg[half], step);
      if (lane + step < 32) dg[half] += other;
    }
  }
  dg[1] += last;
  dg[0] += __shfl_sync(0xffffffffu, dg[1], 0);
  const GateMath gate{Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded};
  float d_bias = 0, d_rate = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane + 32 * half;
    if (row >= chunk.length) continue;
    const int64_t where =
        static_cast<int64_t>(chunk.begin + row) * p.heads + head;
    const float x = p.a[where] + p.dt_bias[head];
    const float da = dg[half] * gate.Slope(x);
    out.da[where] = da;
    out.dbeta[where] = smem.sums.beta[0][row] + smem.sums.beta[1][row];
    d_bias += da;
    d_rate += dg[half] * gate.RateSlope(x);
  }
  if (out.part_dt_bias == nullptr) return;
  for (int mask = 16; mask > 0; mask /= 2) {
    d_bias += ShuffleXor(d_bias, mask);
    d_rate += ShuffleXor(d_rate, mask);
  }
  if (lane == 0) {
    out.part_dt_bias[tile] = d_bias;
    out.part_a_log[tile] = d_rate;
  }
}

__device__ __forceinline__ KeySink MakeSink(const Problem& p,
                                            const Chunk& chunk, int head,
                                            int turn, int shared, uint16_t* to,
                                            float* part) {
  const int key_heads = p.num_heads / shared;
  const int key_head = (head - p.first_head) / shared;
  return {.to = to + p.key_row(chunk.begin, head),
          .part = part == nullptr
                      ? nullptr
                      : part + (static_cast<int64_t>(chunk.begin) * key_heads +
                                key_head) *
                                   kDim,
          .pitch = p.key_pitch(),
          .part_pitch = key_heads * kDim,
          .length = chunk.length,
          .first = turn == 0,
          .last = turn == shared - 1};
}

// One value head; `turn` counts those of the key head.
__device__ __forceinline__ void FinishHead(const Problem& p,
                                           const FinishOutput& out,
                                           const Chunk& chunk, int64_t tile,
                                           int head, int turn, int shared,
                                           HeadFinishSmem& smem) {
  LoadHeadStates(p, chunk, head, tile, turn & 1, smem);
  SumHeadStates(smem);
  // The branches below have syncs of their own, which racecheck does not match
  // with each other: this one ends the plain reads of the states for it.
  __syncthreads();
  const bool scores = WarpIndex() < 4;
  // Each branch syncs as often as the other.
  if (scores) {
    HeadScoreSums sums = {};
    uint32_t d_qk[4][4];
    QueryStates(smem, HeadPlace(), sums, d_qk);
    __syncthreads();  // s, ds, x and dO are dead
    StoreSquare(smem.d_qk, HeadPlace(), d_qk);
    StartHeadKeys(p, chunk, head, tile, smem);
    CopyAsyncWait<0>();
    FenceAsyncShared();
    BarrierWait(&smem.loaded[1], turn & 1);
    __syncthreads();
    KeyScores(smem, HeadPlace(), sums);
    __syncwarp();
    SumScores(smem, HeadPlace(), sums);
    FenceAsyncShared();
    __syncthreads();
    WriteQueries(smem, HeadPlace(), sums,
                 MakeSink(p, chunk, head, turn, shared, out.dq, out.part_dq));
  } else {
    HeadKeySums sums;
    sums.dg[0] = sums.dg[1] = 0;
    uint32_t dw[8][4];
    KeyStates(smem, sums, dw);
    __syncthreads();
    StoreWide(smem.dw, HeadPlace(), dw);
    StartHeadKeys(p, chunk, head, tile, smem);
    CopyAsyncWait<0>();
    FenceAsyncShared();
    BarrierWait(&smem.loaded[1], turn & 1);
    __syncthreads();
    InverseProducts(smem, HeadPlace(), out.dv + p.row(chunk.begin, head),
                    p.pitch(), chunk.length, sums);
    __syncthreads();
    WriteKeyGradients(
        smem, HeadPlace(), sums,
        MakeSink(p, chunk, head, turn, shared, out.dk, out.part_dk));
  }
  __syncthreads();
  if (threadIdx.x < 32) WriteHeadGate(p, chunk, head, tile, out, smem);
  if (turn < shared - 1) {
    FenceAsyncShared();
    __syncthreads();
  }
}

__device__ __forceinline__ void HeadFinishChunk(const Problem& p,
                                                const FinishOutput& out,
                                                HeadFinishSmem& smem) {
  const int shared = p.heads / p.key_heads;
  const int key_heads = p.num_heads / shared;
  const int chunk_index = blockIdx.x / key_heads;
  const Chunk chunk = p.chunks[chunk_index];
  if (chunk.length == 0) return;
  if (threadIdx.x == 0) {
    BarrierInit(&smem.loaded[0], 1);
    BarrierInit(&smem.loaded[1], 1);
    BarrierInitFence();
  }
  __syncthreads();
  const int first = p.first_head + blockIdx.x % key_heads * shared;
#pragma unroll 1
  for (int turn = 0; turn < shared; ++turn) {
    FinishHead(p, out, chunk, p.tile(chunk_index, first + turn), first + turn,
               turn, shared, smem);
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_CUH_
