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

// dv = beta Inv^T dX, and what Inv^T dw gives to dk.
__device__ __forceinline__ void InverseProducts(HeadFinishSmem& smem,
                                                const HeadPlace& at,
                                                uint16_t* dv, int pitch,
                                                int length, HeadKeySums& sums) {
  float values[2] = {0, 0}, keys[2] = {0, 0}, kept_sum = 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float d[8][4];
    MultiplyTransposed(d, smem.inverse, smem.dx + part * kChunk * 64);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row[half];
      const float b = smem.rows.beta[row];
      uint16_t* to = dv + row * pitch + part * 64 + 2 * at.quad;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t v = TilePair(smem.v, row, 8 * part + n, at);
        values[half] += d[n][2 * half] * Low(v) + d[n][2 * half + 1] * High(v);
        if (row < length) {
          *reinterpret_cast<uint32_t*>(to + 8 * n) =
              Pack(d[n][2 * half] * b, d[n][2 * half + 1] * b);
        }
      }
    }
  }
  const float last = smem.rows.g[kChunk - 1];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float d[8][4];
    MultiplyTransposed(d, smem.inverse, smem.dw + part * kChunk * 64);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row[half];
      const float b = smem.rows.beta[row], g = smem.rows.g[row];
      const float since = Exp2(g), until = Exp2(last - g);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const uint32_t pair = TilePair(smem.k, row, 8 * part + n, at);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float k = e == 0 ? Low(pair) : High(pair);
          float& dk = sums.dk[8 * part + n][2 * half + e];
          const float kept = dk * until;
          const float back = d[n][2 * half + e] * since;
          keys[half] += back * k;
          kept_sum += k * kept;
          sums.dg[half] += k * (b * back - kept);
          dk = kept + b * back;
        }
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float b = smem.rows.beta[at.row[half]];
    sums.beta[half] = (values[half] + keys[half]) * b * (1.0f - b);
  }
  for (int mask = 16; mask > 0; mask /= 2)
    kept_sum += ShuffleXor(kept_sum, mask);
  if (at.lane == 0) smem.kept[at.row0 / kSub] = kept_sum;
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
