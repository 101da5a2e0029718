#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_

// The parts of finish.cuh outside the score matrices' own gradients: products
// with the states and with the inverse. Device code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// rowsum(S dS), an eighth of the rows of V.
__device__ __forceinline__ void SumStates(FinishSmem& smem) {
  const int tid = ThreadIndexAgain();
  const int pair = tid & 31, eighth = tid >> 5;
  float sum0 = 0, sum1 = 0;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    const int offset = Square(eighth * 16 + i, 2 * pair);
    const uint32_t s = *reinterpret_cast<uint32_t*>(smem.s + offset);
    const uint32_t ds = *reinterpret_cast<uint32_t*>(smem.ds + offset);
    sum0 += Low(s) * Low(ds);
    sum1 += High(s) * High(ds);
  }
  *reinterpret_cast<float2*>(&smem.partial[eighth][2 * pair]) =
      make_float2(sum0, sum1);
}
// What the states give to dG's last row. Into the first of their places.
__device__ __forceinline__ void SumLastRow(FinishSmem& smem) {
  const int tid = ThreadIndexAgain();
  if (tid >= kFinishDim) return;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += smem.partial[i][tid];
  smem.partial[0][tid] = sum * Exp2(smem.border[4][tid]);
}

// dO S^T and X dS^T to where they begin to decay, dw to its tile and dAqk to
// `d_aqk`.
__device__ __forceinline__ void MultiplyStates(FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums,
                                               uint32_t (&d_aqk)[2][4]) {
  float dw[4][4], scores[4][4];
  const Operand d_o = RowsOf(smem.d_o);
  const Operand state = ColumnsOf(smem.s + at.col0);
  WgmmaFence();
  StartProduct<false, true, 8>(sums.dq, d_o, state);
  StartProduct<false, true, 8>(dw, RowsOf(smem.dx), state);
  StartProduct<false, true, 8>(sums.below, RowsOf(smem.x),
                               ColumnsOf(smem.ds + at.col0));
  StartProduct<false, false, 8>(scores, d_o, RowsOf(smem.x + at.col0 * 64));
  WgmmaCommit();
  SumStates(smem);
  WgmmaWait<0>();
  Pin(sums.dq);
  Pin(dw);
  Pin(sums.below);
  Pin(scores);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.dq[n][i] *= kScale;
      dw[n][i] = -dw[n][i];
      const int row = at.row[i >> 1], col = at.col + 8 * n + (i & 1);
      scores[n][i] = col <= row ? scores[n][i] * kScale : 0.0f;
    }
  }
  uint32_t packed[2][4];
  PackRows(packed, dw);
  StoreRows(smem.dw, at, packed);
  PackRows(d_aqk, scores);
}

// This block's columns of dX v^T + dw (exp(G) k)^T, and Inv^T dX and Inv^T dw.
__device__ __forceinline__ void MultiplyWrites(FinishSmem& smem,
                                               const FinishPlace& at, int half,
                                               float (&m)[4][4],
                                               float (&values)[4][4],
                                               float (&keys)[4][4]) {
  const uint16_t* dx = smem.dx + half * kSquare;
  const Operand inverse = ColumnsOf(smem.inverse);
  WgmmaFence();
  StartProduct<false, false, 4>(m, RowsOf(dx), RowsOf(smem.v + at.col0 * 64));
  StartProduct<false, false, 4, true>(m, RowsOf(smem.dw),
                                      RowsOf(smem.ke + at.col0 * 64));
  WgmmaCommit();
  StartProduct<true, true, 4>(values, inverse, ColumnsOf(dx + at.col0));
  StartProduct<true, true, 4>(keys, inverse, ColumnsOf(smem.dw + at.col0));
  WgmmaCommit();
  WgmmaWait<1>();
  Pin(m);
}

// To the other block of the cluster, lower blocks alone.
__device__ __forceinline__ void SendWrites(FinishSmem& smem,
                                           const FinishPlace& at, int half,
                                           const float (&m)[4][4]) {
  const uint32_t to = PeerAddress(smem.received[0][0][at.lane], half ^ 1);
  const uint32_t barrier = PeerAddress(&smem.exchanged[0], half ^ 1);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int column = 2 * at.part + c;
    if (column > at.block) continue;
    const int slot = at.block * (at.block + 1) / 2 + column;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      StorePeer(to + (2 * slot + n) * sizeof(smem.received[0][0]), m[2 * c + n],
                barrier);
    }
  }
}
// M = stril(dX v^T + dw (exp(G) k)^T) diag(beta), over v.
__device__ __forceinline__ void StoreWrites(FinishSmem& smem,
                                            const FinishPlace& at,
                                            float (&m)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int column = 2 * at.part + (n >> 1);
    float other[4] = {};
    if (column <= at.block) {
      const int slot = at.block * (at.block + 1) / 2 + column;
      LoadFloats(smem.received[slot][n & 1][at.lane], other);
    }
    const float2 beta = ColumnPair(smem.beta, at, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = at.row[i >> 1], col = at.col + 8 * n + (i & 1);
      const float sum = (m[n][i] + other[i]) * (i & 1 ? beta.y : beta.x);
      m[n][i] = col < row ? sum : 0.0f;
    }
  }
  uint32_t packed[2][4];
  PackRows(packed, m);
  StoreRows(smem.m, at, packed);
}

// dv = beta v', and what <v', v> gives to dbeta.
__device__ __forceinline__ void WriteValues(FinishSmem& smem,
                                            const FinishPlace& at, uint16_t* dv,
                                            int pitch, int length,
                                            const float (&values)[4][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float beta = smem.beta[at.row[half]];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t v = SquarePair(smem.v, at, n, half);
      const float x = values[n][2 * half], y = values[n][2 * half + 1];
      sum += x * Low(v) + y * High(v);
      if (at.row[half] < length) {
        *reinterpret_cast<uint32_t*>(dv + at.row[half] * pitch + at.col +
                                     8 * n) = Pack(beta * x, beta * y);
      }
    }
    sum = QuadSum(beta * (1.0f - beta) * sum);
    if (at.quad == 0) smem.row_part[at.part][at.row[half]] = sum;
  }
}

// T = M Inv^T, over dw.
__device__ __forceinline__ void MultiplyInverseRight(FinishSmem& smem,
                                                     const FinishPlace& at) {
  float t[4][4];
  WgmmaFence();
  StartProduct<false, false, 4>(t, RowsOf(smem.m),
                                RowsOf(smem.inverse + at.col0 * 64));
  FinishProduct(t);
  uint32_t packed[2][4];
  PackRows(packed, t);
  StoreRows(smem.t, at, packed);
}

// beta_i dAkk = -beta_i stril(Inv^T T).
__device__ __forceinline__ void MultiplyInverseLeft(FinishSmem& smem,
                                                    const FinishPlace& at) {
  float d[4][4];
  WgmmaFence();
  StartProduct<true, true, 4>(d, ColumnsOf(smem.inverse),
                              ColumnsOf(smem.t + at.col0));
  FinishProduct(d);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = at.row[i >> 1], col = at.col + 8 * n + (i & 1);
      d[n][i] = col < row ? -smem.beta[row] * d[n][i] : 0.0f;
    }
  }
  uint32_t packed[2][4];
  PackRows(packed, d);
  StoreRows(smem.d_akk, at, packed);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_
