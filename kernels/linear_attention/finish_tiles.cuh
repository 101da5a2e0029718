#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_

// What the parts of finish.cuh share: its shared memory, a thread's place in
// its chunk, and products of a warpgroup. Device code; private to kernels/kda.

#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/decays.cuh"
#include "kernels/linear_attention/finish_output.cuh"
#include "kernels/linear_attention/finish_products.cuh"

namespace cadre::linear_attention {

constexpr int kFinishThreads = 256;
// Channels of K, and columns of V, that one block of a cluster has.
constexpr int kFinishDim = 64;
constexpr int kLowerBlocks = 10;  // of 16x16, diagonal ones among them

// A cluster's work. Looked up in shared memory: registers are too short to keep
// it.
struct FinishJob {
  int begin, length, head, tile;
};

// Tiles of a half of the columns are square tiles. 113 KB: two blocks on a
// multiprocessor.
struct FinishSmem {
  union {
    struct {  // until the products with the states are made
      uint16_t s[kDim * kFinishDim];
      uint16_t ds[kDim * kFinishDim];
      uint16_t d_o[kTile];
      uint16_t x[kTile];
    };
    struct {
      float g[kSquare];      // G inside sub-blocks, then dG; Deep
      uint16_t qp[kSquare];  // q exp(G - border before)
      uint16_t kp[kSquare];  // k likewise
      uint16_t kn[kSquare];  // k exp(border behind - G)
      uint16_t kd[kSquare];  // k exp(border before - G); zeros where steep
      uint16_t ke[kSquare];  // k exp(G)
      union {
        // What the other block has of M, as a warp's lanes have it.
        float received[kLowerBlocks][2][32][4];
        float d_bias[4][kFinishDim];  // of dt_bias, a sub-block's share
      };
    };
  };
  union {
    uint16_t dx[kTile];
    struct {  // bf16; zeros on the diagonal and above
      uint16_t d_aqk[kSquare];
      uint16_t d_akk[kSquare];  // times beta of the row
    };
  };
  union {
    float parked[kChunk / 4][kFinishDim];  // of SumDecays
    uint16_t dw[kSquare];
    uint16_t t[kSquare];  // M Inv^T
  };
  union {
    uint16_t v[kSquare];
    uint16_t m[kSquare];
  };
  uint16_t inverse[kSquare];
  float border[5][kFinishDim];
  float fall[4][kFinishDim];
  // Sums over a part of the rows; of dG those of a sub-block, behind what the
  // states give to the last row.
  float partial[8][kFinishDim];
  float kept[4][kFinishDim];  // colsum(k dkN) of a sub-block
  float row_part[2][kChunk];  // of dbeta: sums over a part of the columns
  float other_beta[kChunk];   // and of the other block's columns
  float rate[kFinishThreads / 32];
  float beta[kChunk];
  int steep[4];
  uint64_t loaded;
  uint64_t exchanged[2];  // what the other block sends: M, then the sums
  FinishJob job;
  float other_rate;  // as other_beta, of the gradient of a_log
};
static_assert(sizeof(FinishSmem) <= 115712);

// f32 [64,64], permuted so that reads of accumulators' places meet no bank
// twice.
__device__ __forceinline__ int Deep(int row, int col) {
  return row * kFinishDim + (col ^ ((row & 3) << 3));
}

// A thread's place: its warp's 16x32 piece of the [64,64] results, and the
// elements of that piece which the thread has in accumulators. A warpgroup has
// 32 columns.
struct FinishPlace {
  int lane, group, quad;
  int part, block;  // of the columns, of the rows
  int row0, col0;
  int row[2];  // accumulator's two rows
  int col;     // first column; others 8 n further

  __device__ __forceinline__ FinishPlace()
      : lane(ThreadIndexAgain() & 31), group(lane >> 2), quad(lane & 3) {
    const int warp = __shfl_sync(0xffffffffu, ThreadIndexAgain() >> 5, 0);
    part = warp >> 2;
    block = warp & 3;
    row0 = block * kSub;
    col0 = part * 32;
    row[0] = row0 + group;
    row[1] = row[0] + 8;
    col = col0 + 2 * quad;
  }
};

// What a thread carries from part to part, in accumulators [n][4]. The first
// three are sums that run from sub-block to sub-block and decay on the way.
struct FinishSums {
  float dq[4][4];     // times exp(border - G); then dq
  float ak[4][4];     // what rows above give to k, likewise; then dk
  float below[4][4];  // what rows below give to k, times exp(G - border)
  float dg[4][4];
  float keys[2];  // <k, ak>, of a row
};

// The thread's two columns of row `half` in a tile. Eight columns further is an
// exclusive or.
__device__ __forceinline__ uint32_t SquarePair(const uint16_t* tile,
                                               const FinishPlace& at, int n,
                                               int half) {
  return *reinterpret_cast<const uint32_t*>(
      tile + (Square(at.row[0], at.col) ^ (8 * n)) + half * (8 * 64));
}
__device__ __forceinline__ int DeepOffset(const FinishPlace& at, int n,
                                          int half) {
  return (Deep(at.row[0], at.col) ^ (8 * n)) + half * (8 * kFinishDim);
}
__device__ __forceinline__ float2 DeepPair(const float* tile,
                                           const FinishPlace& at, int n,
                                           int half) {
  return *reinterpret_cast<const float2*>(tile + DeepOffset(at, n, half));
}
// Two columns that are the same in all rows.
__device__ __forceinline__ float2 ColumnPair(const float* from,
                                             const FinishPlace& at, int n) {
  return *reinterpret_cast<const float2*>(from + at.col + 8 * n);
}
// Of a [T,heads,128] tensor; `from` is the head's and the half's first row.
// Rows behind the chunk's end repeat the last one.
__device__ __forceinline__ uint32_t LoadPair(const uint16_t* from, int pitch,
                                             int length, const FinishPlace& at,
                                             int n, int half) {
  return __ldg(reinterpret_cast<const uint32_t*>(
      from + min(at.row[half], length - 1) * pitch + at.col + 8 * n));
}

// Accumulators [16,32] to a tile, rounded.
__device__ __forceinline__ void PackRows(uint32_t (&packed)[2][4],
                                         const float (&d)[4][4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    packed[n][0] = Pack(d[2 * n][0], d[2 * n][1]);
    packed[n][1] = Pack(d[2 * n][2], d[2 * n][3]);
    packed[n][2] = Pack(d[2 * n + 1][0], d[2 * n + 1][1]);
    packed[n][3] = Pack(d[2 * n + 1][2], d[2 * n + 1][3]);
  }
}
__device__ __forceinline__ void StoreRows(uint16_t* tile, const FinishPlace& at,
                                          const uint32_t (&packed)[2][4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    StoreMatrix4(tile + Square(at.row0 + RowsFirstRow(at.lane),
                               at.col0 + 16 * n + RowsFirstCol(at.lane)),
                 packed[n]);
  }
}

// Operands of a product in shared memory, for steps of 16 along k. What is the
// same for all steps is worked out once.
struct Operand {
  uint64_t first;
  int step;   // bytes
  int after;  // bytes that the fifth step lies further

  __device__ __forceinline__ uint64_t operator()(int k) const {
    const uint32_t low = static_cast<uint32_t>(first) +
                         (((k & 3) * step + (k >> 2) * after) >> 4);
    return (first & 0xffffffff00000000u) | low;
  }
};
// Rows are rows (or columns) of the product; of a wide or a square tile.
__device__ __forceinline__ Operand RowsOf(const uint16_t* tile) {
  return {RowsOfN(Again(tile)), 32, kChunk * 128};
}
// Rows are k; a product takes its columns from `tile` on.
__device__ __forceinline__ Operand ColumnsOf(const uint16_t* tile) {
  return {RowsOfK(Again(tile), 0), 16 * 128, 4 * 16 * 128};
}
// d[64,32] (+)= sum over kSteps of a(k) b(k); under way when this returns.
template <bool kTransA, bool kRowsOfK, int kSteps, bool kAdd = false>
__device__ __forceinline__ void StartProduct(float (&d)[4][4], Operand a,
                                             Operand b) {
  GroupMma<kTransA, kRowsOfK, kAdd>(d, a(0), b(0));
#pragma unroll
  for (int k = 1; k < kSteps; ++k)
    GroupMma<kTransA, kRowsOfK, true>(d, a(k), b(k));
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_
