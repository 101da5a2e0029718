#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_

// The parts of finish.cuh outside the score matrices' own gradients: products
// with the states and with the inverse. Device code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// dO S^T, X dS^T (both as they come), dw and dAqk.
__device__ __forceinline__ void MultiplyStates(FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums) {
  {
    float acc[2][4][4] = {};
    MultiplyState<2>(acc, {smem.in.d_o, smem.in.dx}, smem.in.s, at.row0,
                     at.col0, at.lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.dq[n][i] = acc[0][n][i];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&x)[4] = acc[1][2 * n];
      const float(&y)[4] = acc[1][2 * n + 1];
      const uint32_t pair[4] = {Pack(-x[0], -x[1]), Pack(-x[2], -x[3]),
                                Pack(-y[0], -y[1]), Pack(-y[2], -y[3])};
      StoreMatrix4(smem.dw + Wide(at.row0 + RowsFirstRow(at.lane),
                                  at.col0 + 16 * n + RowsFirstCol(at.lane)),
                   pair);
    }
  }
  {
    float acc[1][4][4] = {};
    MultiplyState<1>(acc, {smem.in.x}, smem.in.ds, at.row0, at.col0, at.lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.dk[n][i] = acc[0][n][i];
    }
  }
  if (at.part <= at.block) {
    float acc[2][4] = {};
    MultiplyRows(acc, smem.in.d_o, smem.in.x, at.row0, at.part * kSub, at.lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = at.row[half];
        const int j = at.part * kSub + 8 * n + 2 * at.quad;
        *reinterpret_cast<float2*>(&smem.d_aqk[i * kScorePitch + j]) =
            make_float2(
                j <= i ? Tf32(acc[n][2 * half] * kScale) : 0.0f,
                j + 1 <= i ? Tf32(acc[n][2 * half + 1] * kScale) : 0.0f);
      }
    }
  }
}

// rowsum(S dS), an eighth of the rows of V.
__device__ __forceinline__ void SumStates(FinishSmem& smem) {
  const int pair = threadIdx.x & 63, eighth = threadIdx.x >> 6;
  float sum0 = 0, sum1 = 0;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    const int offset = Wide<kDim>(eighth * 16 + i, 2 * pair);
    const uint32_t s = *reinterpret_cast<uint32_t*>(smem.in.s + offset);
    const uint32_t ds = *reinterpret_cast<uint32_t*>(smem.in.ds + offset);
    sum0 += Low(s) * Low(ds);
    sum1 += High(s) * High(ds);
  }
  *reinterpret_cast<float2*>(&smem.partial[eighth][2 * pair]) =
      make_float2(sum0, sum1);
}

// dv = beta Inv^T dX, into its tile, and <v', v>.
__device__ __forceinline__ void MultiplyValues(FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums) {
  const float beta[2] = {smem.beta[at.row[0]], smem.beta[at.row[1]]};
  float acc[4][4] = {};
  MultiplyInverse(acc, smem.inverse, smem.inv.dx, at.block, at.col0, at.lane);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t v = WidePair(smem.inv.v, at, n, half);
      sums.row_sum[half] +=
          acc[n][2 * half] * Low(v) + acc[n][2 * half + 1] * High(v);
      acc[n][2 * half] *= beta[half];
      acc[n][2 * half + 1] *= beta[half];
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float(&x)[4] = acc[2 * n];
    const float(&y)[4] = acc[2 * n + 1];
    const uint32_t pair[4] = {Pack(x[0], x[1]), Pack(x[2], x[3]),
                              Pack(y[0], y[1]), Pack(y[2], y[3])};
    StoreMatrix4(smem.inv.dv + Wide(at.row0 + RowsFirstRow(at.lane),
                                    at.col0 + 16 * n + RowsFirstCol(at.lane)),
                 pair);
  }
}

// M = stril(dX v^T + dw (exp(G) k)^T) diag(beta).
__device__ __forceinline__ void MultiplyWrites(FinishSmem& smem,
                                               const FinishPlace& at) {
  if (at.part > at.block) return;
  float acc[2][4] = {};
  MultiplyRows(acc, smem.inv.dx, smem.inv.v, at.row0, at.part * kSub, at.lane);
  MultiplyRows(acc, smem.dw, smem.ke, at.row0, at.part * kSub, at.lane);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int j = at.part * kSub + 8 * n + 2 * at.quad;
    const float beta0 = smem.beta[j], beta1 = smem.beta[j + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row[half];
      *reinterpret_cast<uint32_t*>(smem.inv.m + i * kSquarePitch + j) =
          Pack(j < i ? acc[n][2 * half] * beta0 : 0.0f,
               j + 1 < i ? acc[n][2 * half + 1] * beta1 : 0.0f);
    }
  }
}

// Decays of dq, dk; what k' gives to dk, dbeta and dG; dG so far.
__device__ __forceinline__ void AddKeys(FinishSmem& smem, const FinishPlace& at,
                                        const float (&read)[4][4],
                                        FinishSums& sums) {
  const float beta[2] = {smem.beta[at.row[0]], smem.beta[at.row[1]]};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float written[2] = {0, 0};
    const float2 here = ColumnPair(smem.border[at.block], at, n);
    float2 rest = ColumnPair(smem.border[4], at, n);
    rest.x -= here.x;
    rest.y -= here.y;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t pair = WidePair(smem.inv.k, at, n, half);
      const float2 gs = DeepPair(smem.g, at, n, half);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * half + e;
        const float k = e == 0 ? Low(pair) : High(pair);
        const float g = e == 0 ? gs.x : gs.y;
        const float since = Exp2(g + (e == 0 ? here.x : here.y));
        const float until = Exp2((e == 0 ? rest.x : rest.y) - g);
        sums.dq[n][i] *= kScale * since;
        const float kept = sums.dk[n][i] * until;
        const float back = since * read[n][i];
        sums.row_sum[half] += back * k;
        sums.dk[n][i] = kept + beta[half] * back;
        sums.dg[n][i] = k * (beta[half] * back - kept);
        written[e] += k * kept;
      }
    }
    written[0] = GroupSum(written[0]);
    written[1] = GroupSum(written[1]);
    if (at.group == 0) {
      *reinterpret_cast<float2*>(&smem.kept[at.block][at.col + 8 * n]) =
          make_float2(written[0], written[1]);
    }
  }
}

// T = M Inv^T, lower blocks. t lies over dw and ke.
__device__ __forceinline__ void MultiplyInverseRight(FinishSmem& smem,
                                                     const FinishPlace& at) {
  if (at.part > at.block) return;
  float acc[2][4] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k > at.part) continue;
    uint32_t a[4], b[4];
    LoadMatrix4(a, smem.inv.m +
                       (at.row0 + RowsFirstRow(at.lane)) * kSquarePitch +
                       16 * k + RowsFirstCol(at.lane));
    LoadMatrix4(b, smem.inverse + Square(at.part * kSub + ColsFirstRow(at.lane),
                                         16 * k + ColsFirstCol(at.lane)));
    MmaBf16(acc[0], a, b[0], b[1]);
    MmaBf16(acc[1], a, b[2], b[3]);
  }
  const uint32_t pair[4] = {
      Pack(acc[0][0], acc[0][1]), Pack(acc[0][2], acc[0][3]),
      Pack(acc[1][0], acc[1][1]), Pack(acc[1][2], acc[1][3])};
  StoreMatrix4(smem.t + (at.row0 + RowsFirstRow(at.lane)) * kSquarePitch +
                   at.part * kSub + RowsFirstCol(at.lane),
               pair);
}

// beta_i dAkk = -beta_i stril(Inv^T T).
__device__ __forceinline__ void MultiplyInverseLeft(FinishSmem& smem,
                                                    const FinishPlace& at) {
  if (at.part > at.block) return;
  float acc[2][4] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < at.block) continue;
    uint32_t a[4], b[4];
    LoadMatrix4Trans(a, smem.inverse + Square(16 * k + ColsFirstRow(at.lane),
                                              at.row0 + ColsFirstCol(at.lane)));
    LoadMatrix4Trans(b, smem.t +
                            (16 * k + RowsFirstRow(at.lane)) * kSquarePitch +
                            at.part * kSub + RowsFirstCol(at.lane));
    MmaBf16(acc[0], a, b[0], b[1]);
    MmaBf16(acc[1], a, b[2], b[3]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = at.row[half];
      const int j = at.part * kSub + 8 * n + 2 * at.quad;
      const float scale = -smem.beta[i];
      *reinterpret_cast<float2*>(&smem.d_akk[i * kScorePitch + j]) =
          make_float2(j < i ? Tf32(acc[n][2 * half] * scale) : 0.0f,
                      j + 1 < i ? Tf32(acc[n][2 * half + 1] * scale) : 0.0f);
    }
  }
}

// dv out of its tile, and what the chunk's last row of dG has beside the rest.
__device__ __forceinline__ void WriteValues(const Problem& p,
                                            const Chunk& chunk, int head,
                                            uint16_t* dv, FinishSmem& smem) {
  const int tid = threadIdx.x;
  uint16_t* to = dv + p.row(chunk.begin, head);
  for (int i = tid; i < kTile / 8; i += kFinishThreads) {
    const int row = i >> 4, col = (i & 15) * 8;
    if (row < chunk.length) {
      *reinterpret_cast<uint4*>(to + row * p.pitch() + col) =
          *reinterpret_cast<const uint4*>(smem.inv.dv + Wide(row, col));
    }
  }
}
__device__ __forceinline__ void SumLastRow(FinishSmem& smem) {
  const int tid = threadIdx.x;
  if (tid >= kDim) return;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += smem.partial[i][tid];
  sum *= Exp2(smem.border[4][tid]);
  for (int i = 0; i < 4; ++i) sum += smem.kept[i][tid];
  smem.partial[0][tid] = sum;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_STATES_CUH_
