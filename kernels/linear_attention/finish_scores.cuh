#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_

// The parts of finish.cuh that carry the score matrices' gradients to q, k and
// G. Device code; private to kernels/kda.
//
// dG takes what rows give to each other once with each sign, and summed over
// rows both must cancel: so either side is a product of the same rounded
// operands.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// q and k of the head's half, and how they are read again.
struct FinishRows {
  const uint16_t* q;
  const uint16_t* k;
  int pitch, length;
};

__device__ __forceinline__ FinishRows RowsOfJob(const Problem& p,
                                                const FinishJob& job,
                                                int half) {
  const int64_t origin = p.key_row(job.begin, job.head) + half * kFinishDim;
  return {.q = p.q + origin,
          .k = p.k + origin,
          .pitch = p.key_pitch(),
          .length = job.length};
}

__device__ __forceinline__ void ScaleColumns(float (&d)[4][4], int n,
                                             float2 factor) {
  d[n][0] *= factor.x;
  d[n][1] *= factor.y;
  d[n][2] *= factor.x;
  d[n][3] *= factor.y;
}

// Rows 16 block on of the thread's columns, as B operand [16,16].
__device__ __forceinline__ void LoadColumns(uint32_t (&b)[4],
                                            const uint16_t* tile, int block,
                                            int n, const FinishPlace& at) {
  const int from =
      Square(RowsFirstRow(at.lane), at.col0 + RowsFirstCol(at.lane));
  LoadMatrix4Trans(b, tile + (from ^ (16 * n)) + block * (kSub * 64));
}

// to[16,32] += a[16,16] times 16 rows of a tile.
__device__ __forceinline__ void AddProduct(float (&to)[4][4],
                                           const uint32_t (&a)[4],
                                           const uint16_t* tile, int block,
                                           const FinishPlace& at) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    uint32_t b[4];
    LoadColumns(b, tile, block, n, at);
    MmaBf16(to[2 * n], a, b[0], b[1]);
    MmaBf16(to[2 * n + 1], a, b[2], b[3]);
  }
}

// A steep sub-block's own share of dq or ak, in f32, and what it gives to dG.
__device__ inline void AddSteepAbove(const FinishSmem& smem,
                                     const FinishPlace& at,
                                     const FinishRows& rows,
                                     const uint16_t* scores,
                                     const uint16_t* mine, float (&to)[4][4],
                                     float (&dg)[4][4], float (&sum)[2]) {
  float own[4][4] = {};
#pragma unroll 1
  for (int j = at.row0; j < min(at.row0 + kSub, rows.length); ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool above = j <= at.row[half];
      const float score = above ? Low(scores[Square(at.row[half], j)]) : 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int col = at.col + 8 * n;
        const uint32_t k =
            *reinterpret_cast<const uint32_t*>(rows.k + j * rows.pitch + col);
        const float2 gi = DeepPair(smem.g, at, n, half);
        const float2 gj =
            *reinterpret_cast<const float2*>(&smem.g[Deep(j, col)]);
        own[n][2 * half] += score * (above ? Exp2(gi.x - gj.x) * Low(k) : 0.0f);
        own[n][2 * half + 1] +=
            score * (above ? Exp2(gi.y - gj.y) * High(k) : 0.0f);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t x = LoadPair(mine, rows.pitch, rows.length, at, n, half);
      if (at.row[half] >= rows.length) x = 0;
      const float low = Low(x) * own[n][2 * half];
      const float high = High(x) * own[n][2 * half + 1];
      dg[n][2 * half] += low;
      dg[n][2 * half + 1] += high;
      sum[half] += low + high;
      to[n][2 * half] += own[n][2 * half];
      to[n][2 * half + 1] += own[n][2 * half + 1];
    }
  }
}

// And of kt.
__device__ inline void AddSteepBelow(const FinishSmem& smem,
                                     const FinishPlace& at,
                                     const FinishRows& rows, float (&dk)[4][4],
                                     float (&dg)[4][4]) {
  float below[4][4] = {};
#pragma unroll 1
  for (int j = at.row0; j < min(at.row0 + kSub, rows.length); ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = Square(j, at.row[half]);
      const bool under = j >= at.row[half];
      const float of_q = under ? Low(smem.d_aqk[from]) : 0.0f;
      const float of_k = under ? Low(smem.d_akk[from]) : 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int col = at.col + 8 * n;
        const int offset = j * rows.pitch + col;
        const uint32_t q = *reinterpret_cast<const uint32_t*>(rows.q + offset);
        const uint32_t k = *reinterpret_cast<const uint32_t*>(rows.k + offset);
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
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t k = LoadPair(rows.k, rows.pitch, rows.length, at, n, half);
      if (at.row[half] >= rows.length) k = 0;
      dg[n][2 * half] -= Low(k) * below[n][2 * half];
      dg[n][2 * half + 1] -= High(k) * below[n][2 * half + 1];
      dk[n][2 * half] += below[n][2 * half];
      dk[n][2 * half + 1] += below[n][2 * half + 1];
    }
  }
}

// What the state before the chunk and rows above give to q and k: dq and ak,
// and what they give to dG. keys: <k, ak> of the thread's rows, its columns'
// part.
__device__ __forceinline__ void AddAbove(const Problem& p,
                                         const FinishSmem& smem,
                                         const FinishPlace& at,
                                         FinishSums& sums, float (&keys)[2]) {
#pragma unroll 1
  for (int c = 0; c <= at.block; ++c) {
    const bool own = c == at.block;
    const uint16_t* tile = own ? smem.kd : smem.kn;
    if (!own) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 fall = ColumnPair(smem.fall[c], at, n);
        ScaleColumns(sums.dq, n, fall);
        ScaleColumns(sums.ak, n, fall);
      }
    }
    const int from =
        Square(at.row0 + RowsFirstRow(at.lane), RowsFirstCol(at.lane)) ^
        (c * kSub);
    uint32_t of_q[4], of_k[4];
    LoadMatrix4(of_q, smem.d_aqk + from);
    LoadMatrix4(of_k, smem.d_akk + from);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      LoadColumns(b, tile, c, n, at);
      MmaBf16(sums.dq[2 * n], of_q, b[0], b[1]);
      MmaBf16(sums.dq[2 * n + 1], of_q, b[2], b[3]);
      MmaBf16(sums.ak[2 * n], of_k, b[0], b[1]);
      MmaBf16(sums.ak[2 * n + 1], of_k, b[2], b[3]);
    }
  }
  keys[0] = keys[1] = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t qp = SquarePair(smem.qp, at, n, half);
      const uint32_t kp = SquarePair(smem.kp, at, n, half);
      const float2 g = DeepPair(smem.g, at, n, half);
      float& q0 = sums.dq[n][2 * half];
      float& q1 = sums.dq[n][2 * half + 1];
      float& k0 = sums.ak[n][2 * half];
      float& k1 = sums.ak[n][2 * half + 1];
      const float low = Low(kp) * k0, high = High(kp) * k1;
      keys[half] += low + high;
      sums.dg[n][2 * half] = low + Low(qp) * q0;
      sums.dg[n][2 * half + 1] = high + High(qp) * q1;
      const float since[2] = {Exp2(g.x), Exp2(g.y)};
      q0 *= since[0];
      q1 *= since[1];
      k0 *= since[0];
      k1 *= since[1];
    }
  }
  if (!smem.steep[at.block]) return;
  const FinishRows rows = RowsOfJob(p, smem.job, ClusterRank());
  float unused[2] = {0, 0};
  AddSteepAbove(smem, at, rows, smem.d_aqk, rows.q, sums.dq, sums.dg, unused);
  AddSteepAbove(smem, at, rows, smem.d_akk, rows.k, sums.ak, sums.dg, keys);
}

// to[16,32] += what the rows of a block give to the thread's rows.
__device__ __forceinline__ void AddRowsBelow(const FinishSmem& smem,
                                             const FinishPlace& at, int block,
                                             float (&to)[4][4]) {
  const int from =
      Square(ColsFirstRow(at.lane), at.row0 + ColsFirstCol(at.lane)) +
      block * (kSub * 64);
  uint32_t a[4];
  LoadMatrix4Trans(a, smem.d_aqk + from);
  AddProduct(to, a, smem.qp, block, at);
  LoadMatrix4Trans(a, smem.d_akk + from);
  AddProduct(to, a, smem.kp, block, at);
}

// What rows below and the state behind the chunk give to k: the rest of dk.
__device__ __forceinline__ void AddBelow(FinishSmem& smem,
                                         const FinishPlace& at,
                                         const FinishRows& rows,
                                         FinishSums& sums) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float sum[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t kn = SquarePair(smem.kn, at, n, half);
      sum[0] += Low(kn) * sums.below[n][2 * half];
      sum[1] += High(kn) * sums.below[n][2 * half + 1];
    }
    sum[0] = GroupSum(sum[0]);
    sum[1] = GroupSum(sum[1]);
    if (at.group == 0) {
      const float2 next = ColumnPair(smem.border[at.block + 1], at, n);
      const float2 end = ColumnPair(smem.border[4], at, n);
      *reinterpret_cast<float2*>(&smem.kept[at.block][at.col + 8 * n]) =
          make_float2(sum[0] * Exp2(end.x - next.x),
                      sum[1] * Exp2(end.y - next.y));
    }
  }
#pragma unroll 1
  for (int c = 3; c > at.block; --c) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      ScaleColumns(sums.below, n, ColumnPair(smem.fall[c], at, n));
    AddRowsBelow(smem, at, c, sums.below);
  }
  float inside[4][4] = {};
  AddRowsBelow(smem, at, at.block, inside);
  const bool steep = smem.steep[at.block] != 0;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float2 total = ColumnPair(smem.border[at.block + 1], at, n);
    const float2 here = ColumnPair(smem.border[at.block], at, n);
    total.x -= here.x;
    total.y -= here.y;
    const float rise[2] = {steep ? 0.0f : Exp2(-total.x),
                           steep ? 0.0f : Exp2(-total.y)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 g = DeepPair(smem.g, at, n, half);
      const uint32_t kn = SquarePair(smem.kn, at, n, half);
      const uint32_t kd = SquarePair(smem.kd, at, n, half);
      const float x0 = inside[n][2 * half], x1 = inside[n][2 * half + 1];
      const float y0 = sums.below[n][2 * half];
      const float y1 = sums.below[n][2 * half + 1];
      sums.dg[n][2 * half] -= Low(kd) * x0 + Low(kn) * y0;
      sums.dg[n][2 * half + 1] -= High(kd) * x1 + High(kn) * y1;
      sums.ak[n][2 * half] += Exp2(total.x - g.x) * (x0 * rise[0] + y0);
      sums.ak[n][2 * half + 1] += Exp2(total.y - g.y) * (x1 * rise[1] + y1);
    }
  }
  if (steep) AddSteepBelow(smem, at, rows, sums.ak, sums.dg);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_SCORES_CUH_
