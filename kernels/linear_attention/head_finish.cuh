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
                                               HeadFinishSmem& smem) {
  const HeadFinishJob& job = smem.job;
  if (ThreadIndexAgain() == 0) {
    uint64_t* loaded = &smem.loaded[0];
    const int64_t tile = job.tile;
    BarrierExpect(loaded, 2 * (2 * kState + 2 * kTile));
    BulkCopy(smem.s, p.s + tile * kState, kState * 2, loaded);
    BulkCopy(smem.ds, p.ds + tile * kState, kState * 2, loaded);
    BulkCopy(smem.x, p.u + tile * kTile, kTile * 2, loaded);
    BulkCopy(smem.dx, p.dx + tile * kTile, kTile * 2, loaded);
  }
  CopyWide<kHeadFinishThreads>(smem.d_o, job.d_o, p.pitch(), job.length);
  CopyAsyncCommit();
  if (ThreadIndexAgain() < 32) {
    SumHeadDecays(p, {.begin = job.begin, .length = job.length}, job.head,
                  smem.rows);
  }
  CopyAsyncWait<0>();
  FenceAsyncShared();
  BarrierWait(&smem.loaded[0], smem.job.turn & 1);
  __syncthreads();
}

// The inverse, v, k and q on their way to where the states were.
__device__ __forceinline__ void StartHeadKeys(const Problem& p,
                                              HeadFinishSmem& smem) {
  const HeadFinishJob& job = smem.job;
  if (ThreadIndexAgain() == 0) {
    BarrierExpect(&smem.loaded[1], kSquare * 2);
    BulkCopy(smem.inverse, p.inverse + job.tile * kSquare, kSquare * 2,
             &smem.loaded[1]);
  }
  const int length = job.length;
  CopyWide<kHeadFinishThreads>(smem.k, job.k, p.key_pitch(), length);
  CopyWide<kHeadFinishThreads>(smem.v, job.v, p.pitch(), length);
  CopyWide<kHeadFinishThreads>(smem.q, job.q, p.key_pitch(), length);
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
                                              const HeadFinishSmem& smem) {
  const HeadFinishJob& job = smem.job;
  const int head = job.head;
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
  // No decay of a head is bounded.
  const GateMath gate{
      .rate = Exp2(kLog2E * p.a_log[head]), .bound = 0, .bounded = false};
  float d_bias = 0, d_rate = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane + 32 * half;
    if (row >= job.length) continue;
    const int at = row * p.heads;
    const float x = job.a[at] + p.dt_bias[head];
    const float da = dg[half] * gate.Slope(x);
    job.da[at] = da;
    job.dbeta[at] = smem.sums.beta[0][row] + smem.sums.beta[1][row];
    d_bias += da;
    d_rate += dg[half] * gate.RateSlope(x);
  }
  if (job.part_a_log == nullptr) return;
  for (int mask = 16; mask > 0; mask /= 2) {
    d_bias += ShuffleXor(d_bias, mask);
    d_rate += ShuffleXor(d_rate, mask);
  }
  if (lane == 0) {
    *job.part_dt_bias = d_bias;
    *job.part_a_log = d_rate;
  }
}

__device__ __forceinline__ KeySink MakeSink(const Problem& p,
                                            const HeadFinishJob& job,
                                            uint16_t* to, float* part) {
  return {.to = to,
          .part = part,
          .pitch = p.key_pitch(),
          .part_pitch = job.part_pitch,
          .length = job.length,
          .first = job.turn == 0,
          .last = job.turn == job.turns - 1};
}

// One value head. True: another is to follow, and is the job now.
__device__ __forceinline__ bool FinishHead(const Problem& p,
                                           HeadFinishSmem& smem) {
  LoadHeadStates(p, smem);
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
    StartHeadKeys(p, smem);
    CopyAsyncWait<0>();
    FenceAsyncShared();
    BarrierWait(&smem.loaded[1], smem.job.turn & 1);
    __syncthreads();
    WriteQueries(smem, HeadPlace(), sums,
                 MakeSink(p, smem.job, smem.job.dq, smem.job.part_dq));
    KeyScores(smem, sums);
    FenceAsyncShared();
    __syncthreads();
    SumScores(smem, sums);
  } else {
    HeadKeySums sums;
    uint32_t dw[8][4];
    KeyStates(smem, sums, dw);
    __syncthreads();
    StoreWide(smem.dw, HeadPlace(), dw);
    StartHeadKeys(p, smem);
    CopyAsyncWait<0>();
    FenceAsyncShared();
    BarrierWait(&smem.loaded[1], smem.job.turn & 1);
    __syncthreads();
    sums.beta[0] = sums.beta[1] = 0;
    WriteHeadValues(smem, HeadPlace(), smem.job.dv, p.pitch(), smem.job.length,
                    sums);
    AddHeadKeys(smem, HeadPlace(), sums);
    __syncthreads();
    WriteKeyGradients(smem, HeadPlace(), sums,
                      MakeSink(p, smem.job, smem.job.dk, smem.job.part_dk));
  }
  const bool last = smem.job.turn == smem.job.turns - 1;
  __syncthreads();
  if (ThreadIndexAgain() < 32) WriteHeadGate(p, smem);
  if (last) return false;
  FenceAsyncShared();
  __syncthreads();
  // A warp's own sync would do after the gate's reads of the job, but racecheck
  // does not follow those.
  if (ThreadIndexAgain() == 0) smem.job.Advance();
  __syncthreads();
  return true;
}

// What a block of its index works on; false: nothing.
__device__ __forceinline__ bool StartHeadFinish(const Problem& p,
                                                const FinishOutput& out,
                                                HeadFinishSmem& smem) {
  const int shared = p.heads / p.key_heads;
  const int key_heads = p.num_heads / shared;
  const int chunk_index = blockIdx.x / key_heads;
  const Chunk chunk = p.chunks[chunk_index];
  if (chunk.length == 0) return false;
  if (ThreadIndexAgain() == 0) {
    const int key_head = blockIdx.x % key_heads;  // of this launch
    const int head = p.first_head + key_head * shared;
    const int64_t row = p.row(chunk.begin, head);
    const int64_t key_row = p.key_row(chunk.begin, head);
    const int64_t part =
        (static_cast<int64_t>(chunk.begin) * key_heads + key_head) * kDim;
    const int64_t tile = p.tile(chunk_index, head);
    const bool parameters = out.part_a_log != nullptr;
    const bool parts = out.part_dq != nullptr;
    smem.job = {.d_o = p.d_o + row,
                .v = p.v + row,
                .q = p.q + key_row,
                .k = p.k + key_row,
                .dv = out.dv + row,
                .dq = out.dq + key_row,
                .dk = out.dk + key_row,
                .part_dq = parts ? out.part_dq + part : nullptr,
                .part_dk = parts ? out.part_dk + part : nullptr,
                .part_pitch = key_heads * kDim,
                .head = head,
                .a = p.a + row / kDim,
                .da = out.da + row / kDim,
                .dbeta = out.dbeta + row / kDim,
                .part_a_log = parameters ? out.part_a_log + tile : nullptr,
                .part_dt_bias = parameters ? out.part_dt_bias + tile : nullptr,
                .tile = tile,
                .begin = chunk.begin,
                .length = chunk.length,
                .turn = 0,
                .turns = shared};
    BarrierInit(&smem.loaded[0], 1);
    BarrierInit(&smem.loaded[1], 1);
    BarrierInitFence();
  }
  __syncthreads();
  return true;
}

__device__ __forceinline__ void HeadFinishChunk(const Problem& p,
                                                const FinishOutput& out,
                                                HeadFinishSmem& smem) {
  if (!StartHeadFinish(p, out, smem)) return;
  while (FinishHead(p, smem)) {
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_CUH_
