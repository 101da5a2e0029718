#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_KEYS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_KEYS_CUH_

// The second warpgroup of head_finish.cuh: dk and dv. Device code; private to
// kernels/gdn.

#include "kernels/linear_attention/head_finish_tiles.cuh"

namespace cadre::linear_attention {

struct HeadKeySums {
  float dk[16][4];
  float dg[2], beta[2];  // sums over the thread's columns
};

// dw, rounded, and X dS^T.
__device__ __forceinline__ void KeyStates(const HeadFinishSmem& smem,
                                          HeadKeySums& sums,
                                          uint32_t (&dw)[8][4]) {
  MultiplyByState(sums.dk, smem.dx, smem.s);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float(&x)[4] = sums.dk[2 * n];
    const float(&y)[4] = sums.dk[2 * n + 1];
    dw[n][0] = Pack(-x[0], -x[1]);
    dw[n][1] = Pack(-x[2], -x[3]);
    dw[n][2] = Pack(-y[0], -y[1]);
    dw[n][3] = Pack(-y[2], -y[3]);
  }
  MultiplyByState(sums.dk, smem.x, smem.ds);
}
__device__ __forceinline__ void StoreWide(uint16_t* tile, const HeadPlace& at,
                                          const uint32_t (&rows)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    StoreMatrix4(tile + Wide(at.row0 + RowsFirstRow(at.lane),
                             16 * n + RowsFirstCol(at.lane)),
                 rows[n]);
  }
}

// Products with the inverse are made 32 columns at a time: next to dk there are
// no registers for more.
__device__ __forceinline__ const uint16_t* WideQuarter(const uint16_t* wide,
                                                       int part) {
  return wide + (part >> 1) * (kChunk * 64) + (part & 1) * 32;
}

// dv = beta Inv^T dX; <v, dv> of the rows.
__device__ __forceinline__ void WriteHeadValues(const HeadFinishSmem& smem,
                                                const HeadPlace& at,
                                                uint16_t* dv, int pitch,
                                                int length, HeadKeySums& sums) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    float d[4][4];
    MultiplyTransposed(d, smem.inverse, WideQuarter(smem.dx, part));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row[half];
      const float b = smem.rows.beta[row];
      uint16_t* to = dv + row * pitch + part * 32 + 2 * at.quad;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t v = TilePair(smem.v, row, 4 * part + n, at);
        const float x = d[n][2 * half] * b, y = d[n][2 * half + 1] * b;
        sums.beta[half] += x * Low(v) + y * High(v);
        if (row < length) *reinterpret_cast<uint32_t*>(to + 8 * n) = Pack(x, y);
      }
    }
  }
}

// What Inv^T dw gives to dk, and what that and dk so far give to the sums.
__device__ __forceinline__ void AddHeadKeys(HeadFinishSmem& smem,
                                            const HeadPlace& at,
                                            HeadKeySums& sums) {
  float given[2] = {0, 0}, kept[2] = {0, 0};  // <k, .> of the rows
  const float last = smem.rows.g[kChunk - 1];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    float d[4][4];
    MultiplyTransposed(d, smem.inverse, WideQuarter(smem.dw, part));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row[half];
      const float g = smem.rows.g[row];
      const float since = smem.rows.beta[row] * Exp2(g);
      const float until = Exp2(last - g);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t pair = TilePair(smem.k, row, 4 * part + n, at);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float k = e == 0 ? Low(pair) : High(pair);
          float& dk = sums.dk[4 * part + n][2 * half + e];
          const float before = dk * until;
          const float add = d[n][2 * half + e] * since;
          kept[half] += k * before;
          given[half] += k * add;
          dk = before + add;
        }
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.dg[half] = given[half] - kept[half];
    sums.beta[half] =
        (sums.beta[half] + given[half]) * (1.0f - smem.rows.beta[at.row[half]]);
  }
  float sum = kept[0] + kept[1];
  for (int mask = 16; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  if (at.lane == 0) smem.kept[at.row0 / kSub] = sum;
}

// What the score matrices' gradients give to dk, and dk out.
__device__ __forceinline__ void WriteKeyGradients(HeadFinishSmem& smem,
                                                  const HeadPlace& at,
                                                  HeadKeySums& sums,
                                                  const KeySink& sink) {
  MultiplySquare<true, true>(sums.dk, smem.d_qk, smem.q);
  MultiplySquare<true, true>(sums.dk, smem.d_kk, smem.k);
  MultiplySquare<false, true>(sums.dk, smem.d_kk, smem.k);
  sink.Put(at, 0, *reinterpret_cast<float(*)[8][4]>(&sums.dk[0]));
  sink.Put(at, 64, *reinterpret_cast<float(*)[8][4]>(&sums.dk[8]));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float dg = QuadSum(sums.dg[half]);
    const float beta = QuadSum(sums.beta[half]);
    if (at.quad == 0) {
      smem.sums.dg[1][at.row[half]] = dg;
      smem.sums.beta[1][at.row[half]] = beta;
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_KEYS_CUH_
