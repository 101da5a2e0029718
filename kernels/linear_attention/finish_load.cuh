#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_

// How finish.cuh gets at its inputs, and the gate worked out again. Device
// code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// Columns `half` of the states, the tiles of the scan and the inverse on their
// way, dO and columns `half` of v too.
__device__ __forceinline__ void StartLoads(const Problem& p,
                                           const FinishJob& job, int half,
                                           FinishSmem& smem) {
  if (threadIdx.x == 0) {
    BarrierInit(&smem.loaded, 1);
    BarrierInit(&smem.exchanged[0], 1);
    BarrierInit(&smem.exchanged[1], 1);
    BarrierInitFence();
    BarrierExpect(&smem.exchanged[0], sizeof(smem.received));
    BarrierExpect(&smem.exchanged[1],
                  sizeof(smem.other_beta) + sizeof(smem.other_rate));
    constexpr int kHalfState = kDim * kFinishDim;
    constexpr uint32_t kBytes = 2 * (2 * kHalfState + 2 * kTile + kSquare);
    const int64_t tile = job.tile;
    const int64_t state = tile * kState + half * kHalfState;
    BarrierExpect(&smem.loaded, kBytes);
    BulkCopy(smem.s, p.s + state, kHalfState * 2, &smem.loaded);
    BulkCopy(smem.dx, p.dx + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.ds, p.ds + state, kHalfState * 2, &smem.loaded);
    BulkCopy(smem.x, p.u + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.inverse, p.inverse + tile * kSquare, kSquare * 2,
             &smem.loaded);
    smem.job = job;
  }
  CopyWide<kFinishThreads>(smem.d_o, p.d_o + p.row(job.begin, job.head),
                           p.pitch(), job.length);
  const uint16_t* v = p.v + p.row(job.begin, job.head) + half * kFinishDim;
#pragma unroll
  for (int i = 0; i < kSquare / 8 / kFinishThreads; ++i) {
    const int row = i * (kFinishThreads / 8) + (threadIdx.x >> 3);
    const int col = (threadIdx.x & 7) * 8;
    const bool valid = row < job.length;
    CopyAsync16(smem.v + Square(row, col),
                v + (valid ? row : 0) * p.pitch() + col, valid);
  }
  CopyAsyncCommit();
}

__device__ __forceinline__ void LoadBeta(const Problem& p, const FinishJob& job,
                                         FinishSmem& smem) {
  const int tid = threadIdx.x;
  if (tid >= kChunk) return;
  float b = 0;
  if (tid < job.length) {
    const float logit =
        p.beta[static_cast<int64_t>(job.begin + tid) * p.heads + job.head];
    b = Reciprocal(1.0f + Exp2(-kLog2E * logit));
  }
  smem.beta[tid] = b;
}

using FinishColumns = Columns<4, kFinishDim>;

// Operands of the sums inside the chunk, and G. Over the states.
__device__ __forceinline__ void MakeOperands(FinishSmem& smem, int length,
                                             const FinishColumns& at,
                                             const float (&g)[4][4],
                                             const uint2 (&queries)[4],
                                             const uint2 (&keys)[4]) {
  float before[4], total[4], rise[4];
  LoadFloats(&smem.border[at.sub][at.col], before);
  LoadFloats(&smem.border[at.sub + 1][at.col], total);
  const bool steep = smem.steep[at.sub] != 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    total[c] -= before[c];
    before[c] = Exp2(before[c]);
    rise[c] = steep ? 0.0f : Exp2(-total[c]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float q[4], k[4], kn[4];
    const bool live = at.row(i) < length;
    Unpack(live ? queries[i] : make_uint2(0, 0), q);
    Unpack(live ? keys[i] : make_uint2(0, 0), k);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kn[c] = k[c] * Exp2(total[c] - g[i][c]);
      const float since = Exp2(g[i][c]);
      q[c] *= since;
      k[c] *= since;
    }
    const int to = Square(at.row(i), at.col);
    const auto put = [to](uint16_t* tile, float a, float b, float c, float d) {
      *reinterpret_cast<uint2*>(tile + to) = PackFour(a, b, c, d);
    };
    put(smem.qp, q[0], q[1], q[2], q[3]);
    put(smem.kp, k[0], k[1], k[2], k[3]);
    put(smem.kn, kn[0], kn[1], kn[2], kn[3]);
    put(smem.kd, kn[0] * rise[0], kn[1] * rise[1], kn[2] * rise[2],
        kn[3] * rise[3]);
    put(smem.ke, k[0] * before[0], k[1] * before[1], k[2] * before[2],
        k[3] * before[3]);
    *reinterpret_cast<float4*>(&smem.g[Deep(at.row(i), at.col)]) =
        make_float4(g[i][0], g[i][1], g[i][2], g[i][3]);
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_
