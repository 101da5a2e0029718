#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_CUH_

// The part of a chunk that no other chunk is needed for: gate, cumulated
// decay, both score matrices, the inverse, u, w, qg and kg. One block of 256
// threads for each (chunk, head). Private to kernels/kda.

#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/decays.cuh"
#include "kernels/linear_attention/invert.cuh"
#include "kernels/linear_attention/prepare_turns.cuh"

namespace cadre::linear_attention {

constexpr int kPrepareThreads = 256;

// Shared memory. Operands are wide tiles.
struct PrepareSmem {
  uint16_t qp[kTile];  // q exp(G - border before); then u on its way out
  uint16_t kp[kTile];  // k likewise
  uint16_t kn[kTile];  // k exp(border behind - G); then w on its way out
  // k exp(border before - G); then Inv diag(beta), as a bf16 sum of two square
  // tiles: one alone would be felt in u and w.
  uint16_t kd[kTile];
  uint16_t v[kTile];
  float inverse[kChunk * kInversePitch];
  float border[5][kDim];      // G before sub-block b; [4] is Gn
  float fall[4][kDim];        // exp of a sub-block's decay
  uint32_t hop[2][kDim / 2];  // pairs: decay of block 1, of block 2
  float beta[kChunk];
  int steep[4];  // sub-block leaves the matrix path
};

// Both score matrices' diagonal block of one steep sub-block, one entry a warp
// at a time. `g` [64,128] holds G inside sub-blocks.
__device__ inline void SteepScores(const Problem& p, const Chunk& chunk,
                                   int head, int sub, const float* g,
                                   const float* beta, float* lower,
                                   uint16_t* aqk) {
  const int lane = threadIdx.x & 31;
  int entry = 0;
  for (int i = 0; i < kSub; ++i) {
    for (int j = 0; j <= i; ++j, ++entry) {
      if ((entry & 7) != static_cast<int>(threadIdx.x >> 5)) continue;
      const int ri = sub * kSub + i, rj = sub * kSub + j;
      float qk = 0, kk = 0;
      if (ri < chunk.length) {
        const uint16_t* q = p.q + p.key_row(chunk.begin + ri, head);
        const uint16_t* ki = p.k + p.key_row(chunk.begin + ri, head);
        const uint16_t* kj = p.k + p.key_row(chunk.begin + rj, head);
        for (int c = lane; c < kDim; c += 32) {
          const float factor =
              Low(kj[c]) * Exp2(g[ri * kDim + c] - g[rj * kDim + c]);
          qk += Low(q[c]) * factor;
          kk += Low(ki[c]) * factor;
        }
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        qk += ShuffleXor(qk, mask);
        kk += ShuffleXor(kk, mask);
      }
      if (lane == 0) {
        aqk[Square(ri, rj)] = static_cast<uint16_t>(Pack(qk * kScale, 0));
        if (j < i) lower[ri * kInversePitch + rj] = kk * beta[ri];
      }
    }
  }
}

// Aqk to its tile, and what has to be inverted; entries of steep diagonal
// blocks are left out. A warp has one row of blocks of one matrix. Ends with a
// sync.
__device__ __forceinline__ void ScoreChunk(PrepareSmem& smem, uint16_t* aqk) {
  const int lane = threadIdx.x & 31, warp = WarpIndex();
  const bool keys = warp >= 4;
  const int b = keys ? 7 - warp : warp;
  const uint16_t* rows = keys ? smem.kp : smem.qp;
  const Steps row_at(b * kSub + RowsFirstRow(lane), RowsFirstCol(lane));
  const Steps col_at(ColsFirstRow(lane), ColsFirstCol(lane));
  uint32_t a[8][4];
#pragma unroll
  for (int step = 0; step < 8; ++step)
    LoadMatrix4(a[step], rows + row_at(step));
  const int i0 = b * kSub + (lane >> 2);
  const float factor[2] = {keys ? smem.beta[i0] : kScale,
                           keys ? smem.beta[i0 + 8] : kScale};
#pragma unroll 1
  for (int c = b; c >= 0; --c) {
    const uint16_t* columns = (c == b ? smem.kd : smem.kn) + c * kSub * 64;
    float acc[2][2][4] = {};  // even and odd steps
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      uint32_t n[4];
      LoadMatrix4(n, columns + col_at(step));
      MmaBf16(acc[step & 1][0], a[step], n[0], n[1]);
      MmaBf16(acc[step & 1][1], a[step], n[2], n[3]);
    }
    if (c < b && c > 0) {
      // The next block lies one sub-block further from these rows.
      const uint32_t* hop = smem.hop[c - 1] + (lane & 3);
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const uint32_t near = hop[step * 8], far = hop[step * 8 + 4];
        a[step][0] = MulPair(a[step][0], near);
        a[step][1] = MulPair(a[step][1], near);
        a[step][2] = MulPair(a[step][2], far);
        a[step][3] = MulPair(a[step][3], far);
      }
    }
    if (c == b && smem.steep[b]) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = i0 + 8 * half;
        const int j = c * kSub + 8 * n + 2 * (lane & 3);
        const float x0 =
            (acc[0][n][2 * half] + acc[1][n][2 * half]) * factor[half];
        const float x1 =
            (acc[0][n][2 * half + 1] + acc[1][n][2 * half + 1]) * factor[half];
        StoreScores(keys, smem.inverse, aqk, i, j, x0, x1);
      }
    }
  }
  if (!keys) ZeroAboveBlock(aqk, b, lane);
  __syncthreads();
}

// kKeepInverse: the backward wants Inv itself too. meanwhile(): work of warps 4
// to 7 while the others invert.
template <bool kKeepInverse, typename Meanwhile>
__device__ __forceinline__ void PrepareChunk(const Problem& p,
                                             PrepareSmem& smem,
                                             const PrepareTurns& turns,
                                             Meanwhile&& meanwhile) {
  const int tid = threadIdx.x, lane = tid & 31, warp = WarpIndex();
  const int head = p.first_head + turns.tile % p.num_heads;
  const Chunk chunk = p.chunks[turns.tile / p.num_heads];

  // q, k and v travel while the gate is worked out.
  CopyWide<kPrepareThreads>(smem.qp, p.q + p.key_row(chunk.begin, head),
                            p.key_pitch(), chunk.length);
  CopyWide<kPrepareThreads>(smem.kp, p.k + p.key_row(chunk.begin, head),
                            p.key_pitch(), chunk.length);
  CopyWide<kPrepareThreads>(smem.v, p.v + p.row(chunk.begin, head), p.pitch(),
                            chunk.length);
  CopyAsyncCommit();
  if (tid < kChunk) {
    float b = 0;
    if (tid < chunk.length) {
      const float logit =
          p.beta[static_cast<int64_t>(chunk.begin + tid) * p.heads + head];
      b = Reciprocal(1.0f + Exp2(-kLog2E * logit));
    }
    smem.beta[tid] = b;
  }

  const Columns<8> at(lane, warp);
  float g[8][4];
  uint2 z[8];
  LoadFours(p.z + p.row(chunk.begin, head), p.pitch(), chunk.length, at, z);
  SumDecays(p, chunk.length, head, 0, at, z, g,
            reinterpret_cast<float(*)[kDim]>(smem.inverse), smem.border,
            smem.fall, smem.steep);
  CopyAsyncWait<0>();
  __syncthreads();
  {
    float before[4], behind[4], total[4], rise[4];
    {
      float here[4], next[4], end[4];
      LoadFloats(&smem.border[at.sub][at.col], here);
      LoadFloats(&smem.border[at.sub + 1][at.col], next);
      LoadFloats(&smem.border[4][at.col], end);
      const bool steep = smem.steep[at.sub] != 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        before[c] = Exp2(here[c]) * kScale;
        behind[c] = Exp2(end[c] - next[c]);
        total[c] = next[c] - here[c];
        rise[c] = steep ? 0.0f : Exp2(-total[c]);
      }
      if (at.group == 0) {
        *reinterpret_cast<float4*>(p.decay + turns.Tile() * kDim + at.col) =
            make_float4(Exp2(end[0]), Exp2(end[1]), Exp2(end[2]), Exp2(end[3]));
        float f1[4], f2[4];
        LoadFloats(&smem.fall[1][at.col], f1);
        LoadFloats(&smem.fall[2][at.col], f2);
#pragma unroll
        for (int c = 0; c < 4; c += 2) {
          const int pair = (at.col + c) / 2;
          smem.hop[0][pair] = Pack(f1[c], f1[c + 1]);
          smem.hop[1][pair] = Pack(f2[c], f2[c + 1]);
        }
      }
    }
    uint16_t* qg = p.qg + turns.Tile() * kTile;
    uint16_t* kg = p.kg + turns.Tile() * kTile;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int offset = Wide(at.row(i), at.col);
      float qs[4], ks[4], kn[4];
      // The thread's own elements, which it alone replaces.
      Unpack(*reinterpret_cast<const uint2*>(smem.qp + offset), qs);
      Unpack(*reinterpret_cast<const uint2*>(smem.kp + offset), ks);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float since = Exp2(g[i][c]);
        kn[c] = ks[c] * Exp2(total[c] - g[i][c]);
        qs[c] *= since;
        ks[c] *= since;
      }
      auto put = [offset](uint16_t* tile, float a, float b, float c, float d) {
        *reinterpret_cast<uint2*>(tile + offset) = PackFour(a, b, c, d);
      };
      put(smem.qp, qs[0], qs[1], qs[2], qs[3]);
      put(smem.kp, ks[0], ks[1], ks[2], ks[3]);
      put(smem.kn, kn[0], kn[1], kn[2], kn[3]);
      put(smem.kd, kn[0] * rise[0], kn[1] * rise[1], kn[2] * rise[2],
          kn[3] * rise[3]);
      put(qg, qs[0] * before[0], qs[1] * before[1], qs[2] * before[2],
          qs[3] * before[3]);
      put(kg, kn[0] * behind[0], kn[1] * behind[1], kn[2] * behind[2],
          kn[3] * behind[3]);
    }
  }
  __syncthreads();

  ScoreChunk(smem, p.aqk + turns.Tile() * kSquare);
  const bool steep_chunk =
      smem.steep[0] | smem.steep[1] | smem.steep[2] | smem.steep[3];
  if (steep_chunk) {
    __syncthreads();  // before steep is made again
    // Rare enough to sum decays again rather than to keep them.
    float* deep = reinterpret_cast<float*>(smem.kn);  // over kd as well
    const Columns<8> at(ThreadIndexAgain() & 31, WarpIndex());
    float g[8][4];
    uint2 z[8];
    LoadFours(p.z + p.row(chunk.begin, head), p.pitch(), chunk.length, at, z);
    SumDecays(p, chunk.length, head, 0, at, z, g,
              reinterpret_cast<float(*)[kDim]>(smem.qp), smem.border, smem.fall,
              smem.steep);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<float4*>(deep + at.row(i) * kDim + at.col) =
          make_float4(g[i][0], g[i][1], g[i][2], g[i][3]);
    }
    __syncthreads();
    for (int b = 0; b < 4; ++b) {
      if (smem.steep[b]) {
        // Above the diagonal: zeros.
        if (tid < kSub * kSub && (tid & 15) > (tid >> 4)) {
          p.aqk[turns.Tile() * kSquare +
                Square(b * kSub + (tid >> 4), b * kSub + (tid & 15))] = 0;
        }
        SteepScores(p, chunk, head, b, deep, smem.beta, smem.inverse,
                    p.aqk + turns.Tile() * kSquare);
      }
    }
    __syncthreads();
  }
  if (warp >= 4) meanwhile();
  InvertUnitLower(smem.inverse);

  // Inv diag(beta).
  uint16_t* high = smem.kd;
  uint16_t* low = smem.kd + kSquare;
  for (int i = tid; i < kChunk * kChunk / 2; i += kPrepareThreads) {
    const int row = i >> 5, col = (i & 31) * 2;
    if (col / kSub > row / kSub) {
      if constexpr (kKeepInverse) {
        *reinterpret_cast<uint32_t*>(p.inverse + turns.Tile() * kSquare +
                                     Square(row, col)) = 0;
      }
      continue;
    }
    const float2 x =
        *reinterpret_cast<float2*>(&smem.inverse[row * kInversePitch + col]);
    const float x0 = x.x * smem.beta[col], x1 = x.y * smem.beta[col + 1];
    const int to = Square(row, col);
    const uint32_t pair = Pack(x0, x1);
    *reinterpret_cast<uint32_t*>(high + to) = pair;
    *reinterpret_cast<uint32_t*>(low + to) =
        Pack(x0 - Low(pair), x1 - High(pair));
    if constexpr (kKeepInverse) {
      *reinterpret_cast<uint32_t*>(p.inverse + turns.Tile() * kSquare + to) =
          Pack(x.x, x.y);
    }
  }
  __syncthreads();

  // u and w: a warp has 16 columns of both.
  uint16_t* out_u = smem.qp;
  uint16_t* out_w = smem.kn;
  {
    const int col = warp * 16;
    uint32_t bv[4][4], bk[4][4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int offset =
          Wide(c * kSub + RowsFirstRow(lane), col + RowsFirstCol(lane));
      LoadMatrix4Trans(bv[c], smem.v + offset);
      LoadMatrix4Trans(bk[c], smem.kp + offset);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      float u[2][4] = {}, w[2][4] = {};
#pragma unroll
      for (int c = b; c >= 0; --c) {
        uint32_t a[4], rest[4];
        const int from = Square(b * kSub + RowsFirstRow(lane),
                                c * kSub + RowsFirstCol(lane));
        LoadMatrix4(a, high + from);
        LoadMatrix4(rest, low + from);
        if (c < b) {
          // What is there lies one sub-block further from the chunk's start.
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const float2 f = *reinterpret_cast<float2*>(
                &smem.fall[c][col + 8 * n + 2 * (lane & 3)]);
            w[n][0] *= f.x;
            w[n][1] *= f.y;
            w[n][2] *= f.x;
            w[n][3] *= f.y;
          }
        }
        MmaBf16(u[0], a, bv[c][0], bv[c][1]);
        MmaBf16(u[1], a, bv[c][2], bv[c][3]);
        MmaBf16(w[0], a, bk[c][0], bk[c][1]);
        MmaBf16(w[1], a, bk[c][2], bk[c][3]);
        MmaBf16(u[0], rest, bv[c][0], bv[c][1]);
        MmaBf16(u[1], rest, bv[c][2], bv[c][3]);
        MmaBf16(w[0], rest, bk[c][0], bk[c][1]);
        MmaBf16(w[1], rest, bk[c][2], bk[c][3]);
      }
      const uint32_t pu[4] = {Pack(u[0][0], u[0][1]), Pack(u[0][2], u[0][3]),
                              Pack(u[1][0], u[1][1]), Pack(u[1][2], u[1][3])};
      const uint32_t pw[4] = {
          Pack(-w[0][0], -w[0][1]), Pack(-w[0][2], -w[0][3]),
          Pack(-w[1][0], -w[1][1]), Pack(-w[1][2], -w[1][3])};
      const int row = b * kSub + RowsFirstRow(lane);
      StoreMatrix4(out_u + Wide(row, col + RowsFirstCol(lane)), pu);
      StoreMatrix4(out_w + Wide(row, col + RowsFirstCol(lane)), pw);
    }
  }
  __syncthreads();
  const uint4* from_u = reinterpret_cast<const uint4*>(out_u);
  const uint4* from_w = reinterpret_cast<const uint4*>(out_w);
  uint4* to_u = reinterpret_cast<uint4*>(p.u + turns.Tile() * kTile);
  uint4* to_w = reinterpret_cast<uint4*>(p.w + turns.Tile() * kTile);
  for (int i = tid; i < kTile / 8; i += kPrepareThreads) {
    to_u[i] = from_u[i];
    to_w[i] = from_w[i];
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_CUH_
