#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_SCORES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_SCORES_CUH_

// The first warpgroup of head_finish.cuh: dq, and the gradients of both score
// matrices. Device code; private to kernels/gdn.

#include "kernels/linear_attention/head_finish_tiles.cuh"

namespace cadre::linear_attention {

struct HeadScoreSums {
  uint32_t dq[16][2];    // K^-1/2 exp(G) dO S^T, rounded
  float g[2];            // of the thread's rows
  float dg[2], beta[2];  // sums over the thread's columns
};

// x where `below` is negative, else 0. No predicate, of which a tile has more
// than there are.
__device__ __forceinline__ float Where(int below, float x) {
  return __int_as_float(__float_as_int(x) & (below >> 31));
}

// dq's part from the state, and d_qk as it will be stored.
__device__ __forceinline__ void QueryStates(const HeadFinishSmem& smem,
                                            const HeadPlace& at,
                                            HeadScoreSums& sums,
                                            uint32_t (&d_qk)[4][4]) {
  {
    float d[16][4];
    MultiplyByState(d, smem.d_o, smem.s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums.g[half] = smem.rows.g[at.row[half]];
      const float since = kScale * Exp2(sums.g[half]);
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        sums.dq[n][half] =
            Pack(d[n][2 * half] * since, d[n][2 * half + 1] * since);
      }
    }
  }
  float d[8][4];
  MultiplyWide<false>(d, smem.d_o, smem.x);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int j = 8 * n + 2 * at.quad;
    const float2 g = *reinterpret_cast<const float2*>(&smem.rows.g[j]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row[half];
      const float x = d[n][2 * half] * kScale * Exp2(sums.g[half] - g.x);
      const float y = d[n][2 * half + 1] * kScale * Exp2(sums.g[half] - g.y);
      d[n][2 * half] = Where(j - 1 - i, x);
      d[n][2 * half + 1] = Where(j - i, y);
    }
  }
  PackSquare(d_qk, d);
}

// dq out, and what it gives to dG: done with before the scores of the keys,
// which need its registers.
__device__ __forceinline__ void WriteQueries(const HeadFinishSmem& smem,
                                             const HeadPlace& at,
                                             HeadScoreSums& sums,
                                             const KeySink& sink) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float d[8][4];
    MultiplyHalf(d, smem.d_qk, smem.k + part * kChunk * 64);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t q = TilePair(smem.q, at.row[half], 8 * part + n, at);
        const uint32_t dq = sums.dq[8 * part + n][half];
        sums.dg[half] += Low(q) * Low(dq) + High(q) * High(dq);
        d[n][2 * half] += Low(dq);
        d[n][2 * half + 1] += High(dq);
      }
    }
    sink.Put(at, 64 * part, d);
  }
}

// d_kk, dAkk = -stril(Inv^T M Inv^T).
__device__ __forceinline__ void KeyScores(HeadFinishSmem& smem,
                                          HeadScoreSums& sums) {
  uint32_t m[4][4];
  {
    const HeadPlace at;
    float d[8][4];
    MultiplyWide<false>(d, smem.dw, smem.k);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 g =
          *reinterpret_cast<const float2*>(&smem.rows.g[8 * n + 2 * at.quad]);
      const float x = Exp2(g.x), y = Exp2(g.y);
      d[n][0] *= x;
      d[n][1] *= y;
      d[n][2] *= x;
      d[n][3] *= y;
    }
    MultiplyWide<true>(d, smem.dx, smem.v);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + 2 * at.quad;
      const float2 b = *reinterpret_cast<const float2*>(&smem.rows.beta[j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = at.row[half];
        d[n][2 * half] = Where(j - i, d[n][2 * half] * b.x);
        d[n][2 * half + 1] = Where(j + 1 - i, d[n][2 * half + 1] * b.y);
      }
    }
    PackSquare(m, d);
  }
  const HeadPlace at;
  float d[8][4];
  WgmmaFence();
  GroupMma<false, false>(d, m[0], RowsOfN(smem.inverse));
#pragma unroll
  for (int k = 1; k < 4; ++k)
    GroupMma<false>(d, m[k], RowsOfN(smem.inverse + k * 16));
  WgmmaCommit();
  WgmmaWait<0>();
  Pin(d);
  PackSquare(m, d);
  StoreSquare(smem.t, at, m);
  FenceAsyncShared();
  GroupSync(1);
  MultiplyTransposed(d, smem.inverse, smem.t);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int j = 8 * n + 2 * at.quad;
    const float2 g = *reinterpret_cast<const float2*>(&smem.rows.g[j]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row[half];
      const float b = -smem.rows.beta[i];
      const float x = d[n][2 * half] * b * Exp2(sums.g[half] - g.x);
      const float y = d[n][2 * half + 1] * b * Exp2(sums.g[half] - g.y);
      d[n][2 * half] = Where(j - i, x);
      d[n][2 * half + 1] = Where(j + 1 - i, y);
    }
  }
  PackSquare(m, d);
  StoreSquare(smem.d_kk, at, m);
}

// Adds the sums of P, the product of a score matrix [64,64] and its gradient,
// to rows' and columns' sums. The diagonal would give nothing to dG.
template <bool kAdd>
__device__ __forceinline__ void SumProducts(HeadFinishSmem& smem,
                                            const HeadPlace& at,
                                            const uint16_t* gradient,
                                            const float (&score)[8][4],
                                            float (&row)[2]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int j = 8 * n + 2 * at.quad;
    float column[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row[half];
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(gradient + Square(i, j));
      const float x = Where(j - i, Low(pair) * score[n][2 * half]);
      const float y = Where(j + 1 - i, High(pair) * score[n][2 * half + 1]);
      row[half] += x + y;
      column[0] += x;
      column[1] += y;
    }
    column[0] = GroupSum(column[0]);
    column[1] = GroupSum(column[1]);
    if (at.group == 0) {
      float* to = &smem.columns[at.row0 / kSub][j];
      to[0] = column[0] + (kAdd ? to[0] : 0.0f);
      to[1] = column[1] + (kAdd ? to[1] : 0.0f);
    }
  }
}

// What the score matrices give to dG and dbeta, and these sums out. A warp
// reads no rows of d_qk and d_kk but its own.
__device__ __forceinline__ void SumScores(HeadFinishSmem& smem,
                                          HeadScoreSums& sums) {
  float d[8][4];
  MultiplyWide<false>(d, smem.q, smem.k);
  // columns lies over t, which the whole warpgroup has read.
  SumProducts<false>(smem, HeadPlace(), smem.d_qk, d, sums.dg);
  MultiplyWide<false>(d, smem.k, smem.k);
  SumProducts<true>(smem, HeadPlace(), smem.d_kk, d, sums.beta);
  const HeadPlace at;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float b = smem.rows.beta[at.row[half]];
    const float dg = QuadSum(sums.dg[half] + sums.beta[half]);
    const float beta = QuadSum(sums.beta[half]) * (1.0f - b);
    if (at.quad == 0) {
      smem.sums.dg[0][at.row[half]] = dg;
      smem.sums.beta[0][at.row[half]] = beta;
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_SCORES_CUH_
