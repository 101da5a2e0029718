#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_TILES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_TILES_CUH_

// What the two warpgroups of head_finish.cuh share. Device code; private to
// kernels/gdn.

#include "kernels/linear_attention/finish_output.cuh"
#include "kernels/linear_attention/finish_products.cuh"
#include "kernels/linear_attention/head_gate.cuh"

namespace cadre::linear_attention {

constexpr int kHeadFinishThreads = 256;

// A block's work: a value head. Looked up in shared memory, and nothing of it
// kept: parameters, and what follows from a counter of the heads, would be
// worked out ahead of the loop over them, which registers are too short for.
struct HeadFinishJob {
  const uint16_t* d_o;  // first row of the chunk
  const uint16_t* v;
  const uint16_t* q;
  const uint16_t* k;
  uint16_t* dv;
  uint16_t* dq;
  uint16_t* dk;
  float* part_dq;  // may be null
  float* part_dk;
  int part_pitch;  // of both: from one token to the next
  int head;
  const float* a;
  float* da;
  float* dbeta;
  float* part_a_log;  // of the tile; may be null, as may be the next
  float* part_dt_bias;
  int64_t tile;
  int begin, length;
  int turn, turns;  // of the key head's value heads

  // To the next value head. By one thread.
  __device__ __forceinline__ void Advance() {
    d_o += kDim;
    v += kDim;
    dv += kDim;
    ++a;
    ++da;
    ++dbeta;
    if (part_a_log != nullptr) {
      ++part_a_log;
      ++part_dt_bias;
    }
    ++tile;
    ++head;
    ++turn;
  }
};

// Sums a row, from both warpgroups.
struct HeadFinishSums {
  float dg[2][kChunk];
  float beta[2][kChunk];  // of the logit of beta
};

// 113 KB: two blocks on a multiprocessor.
struct HeadFinishSmem {
  union {
    struct {
      uint16_t s[kState];
      uint16_t ds[kState];
    };
    struct {  // from the products with the states on
      uint16_t inverse[kSquare];
      union {
        uint16_t t[kSquare];       // M Inv^T
        float columns[4][kChunk];  // then sums of P over a warp's rows
      };
      uint16_t v[kTile];
      uint16_t k[kTile];
      uint16_t q[kTile];
    };
  };
  union {
    uint16_t d_o[kTile];
    uint16_t dw[kTile];
    HeadFinishSums sums;
  };
  uint16_t dx[kTile];
  union {
    uint16_t x[kTile];
    struct {
      uint16_t d_qk[kSquare];  // K^-1/2 dAqk exp(G_i - G_j)
      uint16_t d_kk[kSquare];  // beta_i dAkk exp(G_i - G_j)
    };
  };
  HeadRows rows;
  float states[8];  // <S, dS>, a warp's share
  float kept[4];    // <k, dkN>, likewise
  uint64_t loaded[2];
  HeadFinishJob job;
};
static_assert(sizeof(HeadFinishSmem) <= 115712);

// A thread's rows in the accumulators of its warpgroup.
struct HeadPlace {
  int lane, group, quad;
  int row0;  // of the warp
  int row[2];
  __device__ __forceinline__ HeadPlace()
      : lane(ThreadIndexAgain() & 31),
        group(lane >> 2),
        quad(lane & 3),
        row0((ThreadIndexAgain() >> 5 & 3) * kSub),
        row{row0 + group, row0 + group + 8} {}
};

// Accumulators [64,64] to a square tile, rounded; also as A operands.
__device__ __forceinline__ void StoreSquare(uint16_t* tile, const HeadPlace& at,
                                            const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    StoreMatrix4(tile + Square(at.row0 + RowsFirstRow(at.lane),
                               16 * k + RowsFirstCol(at.lane)),
                 a[k]);
  }
}
__device__ __forceinline__ void PackSquare(uint32_t (&a)[4][4],
                                           const float (&d)[8][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    a[k][0] = Pack(d[2 * k][0], d[2 * k][1]);
    a[k][1] = Pack(d[2 * k][2], d[2 * k][3]);
    a[k][2] = Pack(d[2 * k + 1][0], d[2 * k + 1][1]);
    a[k][3] = Pack(d[2 * k + 1][2], d[2 * k + 1][3]);
  }
}

// Everything below is by a whole warpgroup, operands in shared memory, and
// waits for the result.

// d[64,64] (+)= a b^T, both wide tiles.
template <bool kAdd>
__device__ __forceinline__ void MultiplyWide(float (&d)[8][4],
                                             const uint16_t* a,
                                             const uint16_t* b) {
  a = Again(a);
  b = Again(b);
  WgmmaFence();
  GroupMma<false, false, kAdd>(d, WideStep(a, 0), WideStep(b, 0));
#pragma unroll
  for (int k = 1; k < 8; ++k)
    GroupMma<false, false, true>(d, WideStep(a, k), WideStep(b, k));
  FinishProduct(d);
}
// d[64,128] = a times a state tile, a a wide tile.
__device__ __forceinline__ void MultiplyByState(float (&d)[16][4],
                                                const uint16_t* a,
                                                const uint16_t* state) {
  a = Again(a);
  state = Again(state);
  WgmmaFence();
  GroupMma<false, true, false>(d, WideStep(a, 0), RowsOfK(state, kDim * 128));
#pragma unroll
  for (int k = 1; k < 8; ++k) {
    GroupMma<false, true, true>(d, WideStep(a, k),
                                RowsOfK(state + k * 16 * 64, kDim * 128));
  }
  FinishProduct(d);
}
// d[64,128] (+)= a b, or a^T b, a a square and b a wide tile.
template <bool kTrans, bool kAdd>
__device__ __forceinline__ void MultiplySquare(float (&d)[16][4],
                                               const uint16_t* a,
                                               const uint16_t* b) {
  a = Again(a);
  b = Again(b);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t rows =
        kTrans ? RowsOfK(a + k * 16 * 64, 0) : RowsOfN(a + k * 16);
    const uint64_t columns = RowsOfK(b + k * 16 * 64, kChunk * 128);
    if (k == 0 && !kAdd) {
      GroupMma<kTrans, true, false>(d, rows, columns);
    } else {
      GroupMma<kTrans, true, true>(d, rows, columns);
    }
  }
  FinishProduct(d);
}
// d[64,64] = a b, a a square tile and b 64 columns of a wide one.
__device__ __forceinline__ void MultiplyHalf(float (&d)[8][4],
                                             const uint16_t* a,
                                             const uint16_t* b) {
  a = Again(a);
  b = Again(b);
  WgmmaFence();
  GroupMma<false, true, false>(d, RowsOfN(a), RowsOfK(b, 0));
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    GroupMma<false, true, true>(d, RowsOfN(a + k * 16),
                                RowsOfK(b + k * 16 * 64, 0));
  }
  FinishProduct(d);
}
// d = a^T b, b 8 kCount columns of a wide tile or of a square one.
template <int kCount>
__device__ __forceinline__ void MultiplyTransposed(float (&d)[kCount][4],
                                                   const uint16_t* a,
                                                   const uint16_t* b) {
  a = Again(a);
  b = Again(b);
  WgmmaFence();
  GroupMma<true, true, false>(d, RowsOfK(a, 0), RowsOfK(b, 0));
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    GroupMma<true, true, true>(d, RowsOfK(a + k * 16 * 64, 0),
                               RowsOfK(b + k * 16 * 64, 0));
  }
  FinishProduct(d);
}

// The thread's pair of columns 8 n further in one of its rows.
__device__ __forceinline__ uint32_t TilePair(const uint16_t* tile, int row,
                                             int n, const HeadPlace& at) {
  return *reinterpret_cast<const uint32_t*>(tile +
                                            Wide(row, 8 * n + 2 * at.quad));
}

// dq or dk of one value head: to where they belong, or to the sum over the
// value heads that share the key head.
struct KeySink {
  uint16_t* to;  // the chunk's first row
  float* part;   // likewise; null where no head is shared
  int pitch, part_pitch;
  int length;
  bool first, last;  // of the value heads

  // 64 columns from `col` on.
  __device__ __forceinline__ void Put(const HeadPlace& at, int col,
                                      float (&d)[8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row[half];
      if (row >= length) continue;
      if (part != nullptr) {
        float* sum = part + row * part_pitch + col + 2 * at.quad;
        if (!first) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            const float2 before = *reinterpret_cast<float2*>(sum + 8 * n);
            d[n][2 * half] += before.x;
            d[n][2 * half + 1] += before.y;
          }
        }
        if (!last) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            *reinterpret_cast<float2*>(sum + 8 * n) =
                make_float2(d[n][2 * half], d[n][2 * half + 1]);
          }
          continue;
        }
      }
      uint16_t* out = to + row * pitch + col + 2 * at.quad;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(out + 8 * n) =
            Pack(d[n][2 * half], d[n][2 * half + 1]);
      }
    }
  }
};

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_FINISH_TILES_CUH_
