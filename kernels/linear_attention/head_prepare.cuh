#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_PREPARE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_PREPARE_CUH_

// prepare.cuh for a decay of the whole head: the same results from plain
// products of q and k. One block of 256 threads for each (chunk, head), three
// blocks on a multiprocessor. Device code; private to kernels/gdn.

#include "kernels/linear_attention/head_gate.cuh"
#include "kernels/linear_attention/invert.cuh"
#include "kernels/linear_attention/prepare_turns.cuh"

namespace cadre::linear_attention {

constexpr int kHeadPrepareThreads = 256;

struct HeadPrepareSmem {
  union {
    uint16_t q[kTile];
    uint16_t write[2][kSquare];  // Inv diag(beta), as a bf16 sum of two
  };
  uint16_t k[kTile];  // then w on its way out
  uint16_t v[kTile];  // then u
  union {
    float inverse[kChunk * kInversePitch];
    uint16_t erase[2][kSquare];  // Inv diag(beta exp(G)), likewise
  };
  HeadRows rows;
};

// Aqk to its tile, and what has to be inverted. A warp has one row of blocks of
// one of the two.
__device__ __forceinline__ void HeadScores(HeadPrepareSmem& smem,
                                           uint16_t* aqk) {
  const int lane = threadIdx.x & 31, warp = WarpIndex();
  const bool keys = warp >= 4;
  const int b = keys ? 7 - warp : warp;
  const Steps row_at(b * kSub + RowsFirstRow(lane), RowsFirstCol(lane));
  const Steps col_at(ColsFirstRow(lane), ColsFirstCol(lane));
  uint32_t a[8][4];
#pragma unroll
  for (int step = 0; step < 8; ++step)
    LoadMatrix4(a[step], (keys ? smem.k : smem.q) + row_at(step));
  const int i0 = b * kSub + (lane >> 2);
  float factor[2], g[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    g[half] = smem.rows.g[i0 + 8 * half];
    factor[half] = keys ? smem.rows.beta[i0 + 8 * half] : kScale;
  }
#pragma unroll 1
  for (int c = 0; c <= b; ++c) {
    const uint16_t* columns = smem.k + c * kSub * 64;
    float acc[2][2][4] = {};  // even and odd steps
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      uint32_t n[4];
      LoadMatrix4(n, columns + col_at(step));
      MmaBf16(acc[step & 1][0], a[step], n[0], n[1]);
      MmaBf16(acc[step & 1][1], a[step], n[2], n[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int j = c * kSub + 8 * n + 2 * (lane & 3);
      const float2 gj = *reinterpret_cast<const float2*>(&smem.rows.g[j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = i0 + 8 * half;
        const float x0 = (acc[0][n][2 * half] + acc[1][n][2 * half]) *
                         factor[half] * Exp2(g[half] - gj.x);
        const float x1 = (acc[0][n][2 * half + 1] + acc[1][n][2 * half + 1]) *
                         factor[half] * Exp2(g[half] - gj.y);
        StoreScores(keys, smem.inverse, aqk, i, j, x0, x1);
      }
    }
  }
  if (!keys) ZeroAboveBlock(aqk, b, lane);
}

// out <- pair of lower matrices times out, for a warp's 16 columns.
__device__ __forceinline__ void MultiplyPair(const uint16_t (&pair)[2][kSquare],
                                             uint16_t* out, bool negate) {
  const int lane = threadIdx.x & 31, col = WarpIndex() * 16;
  const uint32_t sign = negate ? 0x80008000u : 0;
  uint32_t b[4][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    LoadMatrix4Trans(b[c], out + Wide(c * kSub + RowsFirstRow(lane),
                                      col + RowsFirstCol(lane)));
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float acc[2][2][4] = {};
#pragma unroll
    for (int c = r; c >= 0; --c) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t a[4];
        LoadMatrix4(a, pair[part] + Square(r * kSub + RowsFirstRow(lane),
                                           c * kSub + RowsFirstCol(lane)));
        MmaBf16(acc[part][0], a, b[c][0], b[c][1]);
        MmaBf16(acc[part][1], a, b[c][2], b[c][3]);
      }
    }
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] =
          sign ^ Pack(acc[0][i >> 1][2 * (i & 1)] + acc[1][i >> 1][2 * (i & 1)],
                      acc[0][i >> 1][2 * (i & 1) + 1] +
                          acc[1][i >> 1][2 * (i & 1) + 1]);
    }
    StoreMatrix4(
        out + Wide(r * kSub + RowsFirstRow(lane), col + RowsFirstCol(lane)),
        packed);
  }
}

// q and k as the scan wants them.
__device__ __forceinline__ void WriteScaledKeys(const HeadPrepareSmem& smem,
                                                uint16_t* qg, uint16_t* kg) {
  const float last = smem.rows.g[kChunk - 1];
#pragma unroll
  for (int i = 0; i < kTile / 8 / kHeadPrepareThreads; ++i) {
    const int row = i * (kHeadPrepareThreads / 16) + (threadIdx.x >> 4);
    const int at = Wide(row, (threadIdx.x & 15) * 8);
    const float g = smem.rows.g[row];
    const float since = kScale * Exp2(g), until = Exp2(last - g);
    const auto scaled = [at](const uint16_t* from, float factor) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + at);
      const auto pair = [factor](uint32_t two) {
        return Pack(Low(two) * factor, High(two) * factor);
      };
      return make_uint4(pair(x.x), pair(x.y), pair(x.z), pair(x.w));
    };
    *reinterpret_cast<uint4*>(qg + at) = scaled(smem.q, since);
    *reinterpret_cast<uint4*>(kg + at) = scaled(smem.k, until);
  }
}

// Inv as the two pairs, and for the backward as it is.
template <bool kKeepInverse>
__device__ __forceinline__ void SplitInverse(HeadPrepareSmem& smem,
                                             uint16_t* inverse) {
  constexpr int kMine = kSquare / 2 / kHeadPrepareThreads;
  const int row0 = threadIdx.x >> 5, col = (threadIdx.x & 31) * 2;
  float2 x[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int row = row0 + i * (kHeadPrepareThreads / 32);
    x[i] = make_float2(0, 0);
    if (col / kSub <= row / kSub) {
      x[i] =
          *reinterpret_cast<float2*>(&smem.inverse[row * kInversePitch + col]);
    }
  }
  __syncthreads();
  const float2 beta = *reinterpret_cast<const float2*>(&smem.rows.beta[col]);
  const float2 g = *reinterpret_cast<const float2*>(&smem.rows.g[col]);
  const float2 since = make_float2(Exp2(g.x), Exp2(g.y));
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int to = Square(row0 + i * (kHeadPrepareThreads / 32), col);
    const auto split = [to](uint16_t(&pair)[2][kSquare], float x0, float x1) {
      const uint32_t high = Pack(x0, x1);
      *reinterpret_cast<uint32_t*>(pair[0] + to) = high;
      *reinterpret_cast<uint32_t*>(pair[1] + to) =
          Pack(x0 - Low(high), x1 - High(high));
    };
    const float x0 = x[i].x * beta.x, x1 = x[i].y * beta.y;
    split(smem.write, x0, x1);
    split(smem.erase, x0 * since.x, x1 * since.y);
    if constexpr (kKeepInverse) {
      *reinterpret_cast<uint32_t*>(inverse + to) = Pack(x[i].x, x[i].y);
    }
  }
}

// kKeepInverse: the backward wants Inv itself too. meanwhile(): work of warps 4
// to 7 while the others invert.
template <bool kKeepInverse, typename Meanwhile>
__device__ __forceinline__ void HeadPrepareChunk(const Problem& p,
                                                 HeadPrepareSmem& smem,
                                                 const PrepareTurns& turns,
                                                 Meanwhile&& meanwhile) {
  const int tid = threadIdx.x;
  const int head = p.first_head + turns.tile % p.num_heads;
  const Chunk chunk = p.chunks[turns.tile / p.num_heads];

  const int64_t keys = p.key_row(chunk.begin, head);
  CopyWide<kHeadPrepareThreads>(smem.q, p.q + keys, p.key_pitch(),
                                chunk.length);
  CopyWide<kHeadPrepareThreads>(smem.k, p.k + keys, p.key_pitch(),
                                chunk.length);
  CopyAsyncCommit();
  CopyWide<kHeadPrepareThreads>(smem.v, p.v + p.row(chunk.begin, head),
                                p.pitch(), chunk.length);
  CopyAsyncCommit();
  if (tid < 32) SumHeadDecays(p, chunk, head, smem.rows);
  CopyAsyncWait<1>();
  __syncthreads();

  if (tid < kDim)
    p.decay[turns.Tile() * kDim + tid] = Exp2(smem.rows.g[kChunk - 1]);
  HeadScores(smem, p.aqk + turns.Tile() * kSquare);
  WriteScaledKeys(smem, p.qg + turns.Tile() * kTile,
                  p.kg + turns.Tile() * kTile);
  __syncthreads();
  if (WarpIndex() >= 4) meanwhile();
  InvertUnitLower(smem.inverse);
  SplitInverse<kKeepInverse>(smem, p.inverse + turns.Tile() * kSquare);
  CopyAsyncWait<0>();
  __syncthreads();
  MultiplyPair(smem.write, smem.v, false);
  MultiplyPair(smem.erase, smem.k, true);
  __syncthreads();
  const uint4* from_u = reinterpret_cast<const uint4*>(smem.v);
  const uint4* from_w = reinterpret_cast<const uint4*>(smem.k);
  uint4* to_u = reinterpret_cast<uint4*>(p.u + turns.Tile() * kTile);
  uint4* to_w = reinterpret_cast<uint4*>(p.w + turns.Tile() * kTile);
#pragma unroll
  for (int i = tid; i < kTile / 8; i += kHeadPrepareThreads) {
    to_u[i] = from_u[i];
    to_w[i] = from_w[i];
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_PREPARE_CUH_
