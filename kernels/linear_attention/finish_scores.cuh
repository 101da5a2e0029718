#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_

// The parts of finish.cuh that carry the score matrices' gradients to q, k and
// G. Device code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// A steep sub-block's own share, in f32.
__device__ inline void AddSteepAbove(const FinishSmem& smem,
                                     const FinishPlace& at, int length,
                                     const float* scores, float (&to)[4][4]) {
#pragma unroll 1
  for (int j = at.row0; j < min(at.row0 + kSub, length); ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool above = j < at.row[half];
      const float score = above ? scores[at.row[half] * kScorePitch + j] : 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int col = at.col + 8 * n;
        const uint32_t k =
            *reinterpret_cast<const uint32_t*>(smem.deep.k + Wide(j, col));
        const float2 gi = DeepPair(smem.g, at, n, half);
        const float2 gj =
            *reinterpret_cast<const float2*>(&smem.g[Deep(j, col)]);
        to[n][2 * half] += score * (above ? Exp2(gi.x - gj.x) * Low(k) : 0.0f);
        to[n][2 * half + 1] +=
            score * (above ? Exp2(gi.y - gj.y) * High(k) : 0.0f);
      }
    }
  }
}

// And of kt.
__device__ inline void AddSteepBelow(const FinishSmem& smem,
                                     const FinishPlace& at, int length,
                                     float (&below)[4][4]) {
#pragma unroll 1
  for (int j = at.row0; j < min(at.row0 + kSub, length); ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = j * kScorePitch + at.row[half];
      const bool under = j > at.row[half];
      const float of_q = under ? smem.d_aqk[from] : 0.0f;
      const float of_k = under ? smem.d_akk[from] : 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int col = at.col + 8 * n;
        const uint32_t q =
            *reinterpret_cast<const uint32_t*>(smem.deep.q + Wide(j, col));
        const uint32_t k =
            *reinterpret_cast<const uint32_t*>(smem.deep.k + Wide(j, col));
        const float2 gi = DeepPair(smem.g, at, n, half);
        const float2 gj =
            *reinterpret_cast<const float2*>(&smem.g[Deep(j, col)]);
        const float f0 = under ? Exp2(gj.x - gi.x) : 0.0f;
        const float f1 = under ? Exp2(gj.y - gi.y) : 0.0f;
        below[n][2 * half] += f0 * (of_q * Low(q) + of_k * Low(k));
        below[n][2 * half + 1] += f1 * (of_q * High(q) + of_k * High(k));
      }
    }
  }
}

// Sums over the rows above of one score matrix's gradient, `to` [16,32]; what
// they give to dG is added there. `rows` is what the matrix multiplies, and
// `risen` that times exp(G - border before), rounded.
//
// dG takes what rows give to each other once with each sign, and summed over
// rows both must cancel: so its products are of the same rounded operands as
// in the sums below.
template <bool kDiagonal>
__device__ __forceinline__ void SumAbove(const FinishSmem& smem,
                                         const FinishPlace& at, int length,
                                         bool steep, const float* scores,
                                         const uint16_t* rows,
                                         const float* risen, float (&to)[4][4],
                                         float (&dg)[4][4]) {
  int column[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) column[n] = DeepColumn(at.col0 + 8 * n, at.lane);
#pragma unroll 1
  for (int c = 0; c < at.block; ++c) {
    if (c > 0) ScaleColumns(to, smem.fall[c], at.col0, at.quad);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 16 * c + 8 * k;
      uint32_t a[4], b[2];
      LoadScores(a, scores, at.row0, row, false, at.lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        LoadDeep(b, smem.deep.kn, row, column[n]);
        MmaTf32(to[n], a, b[0], b[1]);
      }
    }
  }
  if (!steep) {
    // Its own block: k exp(border before - G) is kn risen by the block's fall.
    float rise[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int col = at.col0 + 8 * n + at.group;
      rise[n] =
          Exp2(smem.border[at.block][col] - smem.border[at.block + 1][col]);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = at.row0 + 8 * k;
      uint32_t a[4], b[2];
      LoadScores(a, scores, at.row0, row, kDiagonal, at.lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        LoadDeep(b, smem.deep.kn, row, column[n]);
        MmaTf32(to[n], a, ToTf32(__uint_as_float(b[0]) * rise[n]),
                ToTf32(__uint_as_float(b[1]) * rise[n]));
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 gs = DeepPair(smem.g, at, n, half);
      const float2 row = DeepPair(risen, at, n, half);
      dg[n][2 * half] += row.x * to[n][2 * half];
      dg[n][2 * half + 1] += row.y * to[n][2 * half + 1];
      to[n][2 * half] *= Exp2(gs.x);
      to[n][2 * half + 1] *= Exp2(gs.y);
    }
  }
  if (!steep) return;
  float own[4][4] = {};
  AddSteepAbove(smem, at, length, scores, own);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = WidePair(rows, at, n, i >> 1);
      dg[n][i] += (i & 1 ? High(pair) : Low(pair)) * own[n][i];
      to[n][i] += own[n][i];
    }
  }
}

// What rows above give to q and k.
__device__ __forceinline__ void AddAbove(const FinishSmem& smem,
                                         const FinishPlace& at, int length,
                                         FinishSums& sums) {
  const bool steep = smem.steep[at.block] != 0;
  const float diagonal[2] = {smem.d_aqk[at.row[0] * (kScorePitch + 1)],
                             smem.d_aqk[at.row[1] * (kScorePitch + 1)]};
  {
    float aq[4][4] = {};
    SumAbove<true>(smem, at, length, steep, smem.d_aqk, smem.deep.q,
                   smem.deep.qp, aq, sums.dg);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t qs = WidePair(smem.deep.q, at, n, i >> 1);
        const uint32_t ks = WidePair(smem.deep.k, at, n, i >> 1);
        const float q = i & 1 ? High(qs) : Low(qs);
        const float k = i & 1 ? High(ks) : Low(ks);
        sums.dg[n][i] += q * sums.dq[n][i];
        sums.dq[n][i] += aq[n][i] + diagonal[i >> 1] * k;
        sums.dk[n][i] += diagonal[i >> 1] * q;
      }
    }
  }
}
__device__ __forceinline__ void AddKeysAbove(const FinishSmem& smem,
                                             const FinishPlace& at, int length,
                                             FinishSums& sums) {
  const bool steep = smem.steep[at.block] != 0;
  float ak[4][4] = {};
  SumAbove<false>(smem, at, length, steep, smem.d_akk, smem.deep.k,
                  smem.deep.kp, ak, sums.dg);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t ks = WidePair(smem.deep.k, at, n, i >> 1);
      sums.row_sum_scaled[i >> 1] += (i & 1 ? High(ks) : Low(ks)) * ak[n][i];
      sums.dk[n][i] += ak[n][i];
    }
  }
}

// to[16,32] += what rows `row` to `row` + 15 give to rows row0 on.
__device__ __forceinline__ void AddRowsBelow(const FinishSmem& smem,
                                             const FinishPlace& at,
                                             const int (&column)[4], int row,
                                             bool own, float (&to)[4][4]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t a[4], a2[4], b[2], b2[2];
    LoadScoresTrans(a, smem.d_aqk, at.row0, row + 8 * k, own, at.lane);
    LoadScoresTrans(a2, smem.d_akk, at.row0, row + 8 * k, false, at.lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      LoadDeep(b, smem.deep.qp, row + 8 * k, column[n]);
      LoadDeep(b2, smem.deep.kp, row + 8 * k, column[n]);
      MmaTf32(to[n], a, b[0], b[1]);
      MmaTf32(to[n], a2, b2[0], b2[1]);
    }
  }
}

// What rows get from the rows of their own block below them.
__device__ __forceinline__ void AddInside(const FinishSmem& smem,
                                          const FinishPlace& at, int length,
                                          FinishSums& sums) {
  const bool steep = smem.steep[at.block] != 0;
  float inside[4][4] = {};
  if (steep) {
    AddSteepBelow(smem, at, length, inside);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t ks = WidePair(smem.deep.k, at, n, i >> 1);
        sums.dg[n][i] -= (i & 1 ? High(ks) : Low(ks)) * inside[n][i];
        sums.dk[n][i] += inside[n][i];
      }
    }
    return;
  }
  int column[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) column[n] = DeepColumn(at.col0 + 8 * n, at.lane);
  AddRowsBelow(smem, at, column, at.row0, true, inside);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 here = ColumnPair(smem.border[at.block], at, n);
    const float2 next = ColumnPair(smem.border[at.block + 1], at, n);
    const float rise[2] = {Exp2(here.x - next.x), Exp2(here.y - next.y)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 gs = DeepPair(smem.g, at, n, half);
      const float2 kn = DeepPair(smem.deep.kn, at, n, half);
      float& x = inside[n][2 * half];
      float& y = inside[n][2 * half + 1];
      // As SumAbove has them.
      sums.dg[n][2 * half] -= Tf32(kn.x * rise[0]) * x;
      sums.dg[n][2 * half + 1] -= Tf32(kn.y * rise[1]) * y;
      sums.dk[n][2 * half] += x * Exp2(-gs.x);
      sums.dk[n][2 * half + 1] += y * Exp2(-gs.y);
    }
  }
}

// And from the blocks below.
__device__ __forceinline__ void AddBelow(const FinishSmem& smem,
                                         const FinishPlace& at,
                                         FinishSums& sums) {
  if (at.block == 3) return;
  float below[4][4] = {};
  int column[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) column[n] = DeepColumn(at.col0 + 8 * n, at.lane);
  for (int c = 3; c > at.block; --c) {
    if (c < 3) ScaleColumns(below, smem.fall[c], at.col0, at.quad);
    AddRowsBelow(smem, at, column, kSub * c, false, below);
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 here = ColumnPair(smem.border[at.block], at, n);
    const float2 next = ColumnPair(smem.border[at.block + 1], at, n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 gs = DeepPair(smem.g, at, n, half);
      const float2 kn = DeepPair(smem.deep.kn, at, n, half);
      float& x = below[n][2 * half];
      float& y = below[n][2 * half + 1];
      sums.dg[n][2 * half] -= kn.x * x;
      sums.dg[n][2 * half + 1] -= kn.y * y;
      sums.dk[n][2 * half] += x * Exp2(next.x - here.x - gs.x);
      sums.dk[n][2 * half + 1] += y * Exp2(next.y - here.y - gs.y);
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_
