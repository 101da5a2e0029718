#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_

// What the parts of finish.cuh share: its shared memory, what it writes, and a
// thread's place in its chunk. Device code; private to kernels/kda.

#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/decays.cuh"
#include "kernels/linear_attention/finish_output.cuh"
#include "kernels/linear_attention/finish_products.cuh"

namespace cadre::linear_attention {

constexpr int kFinishThreads = 512;
constexpr int kSquarePitch = 72;  // bf16

struct FinishTiles {  // wide and state tiles
  uint16_t s[kState];
  uint16_t ds[kState];
  uint16_t dx[kTile];
  uint16_t v[kTile];
  uint16_t d_o[kTile];
  uint16_t x[kTile];
};
// After the products with the states; s, ds, d_o and x are dead.
struct FinishInverse {
  uint16_t m[kChunk * kSquarePitch];
  uint16_t room[kState - kChunk * kSquarePitch];
  uint16_t dv[kTile];  // wide
  uint16_t room2[kTile];
  uint16_t dx[kTile];
  uint16_t v[kTile];
  uint16_t q[kTile];  // wide
  uint16_t k[kTile];
};
struct FinishOperands {
  float kn[kTile];  // deep: k exp(border behind - G)
  float qp[kTile];  // deep: q exp(G - border before)
  float kp[kTile];  // deep: k exp(G - border before)
  uint16_t q[kTile];
  uint16_t k[kTile];
};
static_assert(sizeof(FinishInverse) == sizeof(FinishTiles));
static_assert(sizeof(FinishOperands) == sizeof(FinishTiles));

struct FinishSmem {
  union {
    FinishTiles in;
    FinishInverse inv;
    FinishOperands deep;
  };
  float g[kTile];  // G inside sub-blocks; plain rows
  union {
    struct {
      uint16_t dw[kTile];
      uint16_t ke[kTile];  // exp(G) k
    };
    struct {
      uint16_t t[kChunk * kSquarePitch];  // M Inv^T
      float d_akk[kChunk * kScorePitch];  // times beta_i
      float kept[4][kDim];                // colsum(k dkN) of a sub-block
    };
  };
  float d_aqk[kChunk * kScorePitch];
  uint16_t inverse[kSquare];
  float border[5][kDim];
  float fall[4][kDim];
  float partial[8][kDim];     // sums over a part of the rows
  float row_part[4][kChunk];  // sums over a part of the columns
  float beta[kChunk];
  int steep[4];
  uint64_t loaded;
};

// A thread's place: its warp's 16x32 piece of the [64,128] results, and the
// elements of that piece which the thread has in accumulators.
struct FinishPlace {
  int lane, group, quad, warp;
  int part, block;  // of the columns, of the rows
  int row0, col0;
  int row[2];    // accumulator's two rows
  bool live[2];  // inside the chunk
  int col;       // first column; others 8 n further

  __device__ __forceinline__ explicit FinishPlace(int length)
      : lane(ThreadIndexAgain() & 31),
        group(lane >> 2),
        quad(lane & 3),
        warp(__shfl_sync(0xffffffffu, ThreadIndexAgain() >> 5, 0)),
        part(warp & 3),
        block(warp >> 2),
        row0(block * kSub),
        col0(part * 32),
        row{row0 + group, row0 + group + 8},
        live{row[0] < length, row[1] < length},
        col(col0 + 2 * quad) {}
};

// What the thread carries from part to part, in accumulators [n][4].
struct FinishSums {
  float dq[4][4], dk[4][4], dg[4][4];
  // Of dbeta: what comes with a factor of beta (1 - beta) to the logit, and
  // what comes with (1 - beta).
  float row_sum[2], row_sum_scaled[2];
};

// The thread's two columns of row `half` in a wide tile.
__device__ __forceinline__ uint32_t WidePair(const uint16_t* tile,
                                             const FinishPlace& at, int n,
                                             int half) {
  return *reinterpret_cast<const uint32_t*>(tile +
                                            Wide(at.row[half], at.col + 8 * n));
}
__device__ __forceinline__ float2 DeepPair(const float* tile,
                                           const FinishPlace& at, int n,
                                           int half) {
  return *reinterpret_cast<const float2*>(
      &tile[Deep(at.row[half], at.col + 8 * n)]);
}
// Two columns that are the same in all rows.
__device__ __forceinline__ float2 ColumnPair(const float* from,
                                             const FinishPlace& at, int n) {
  return *reinterpret_cast<const float2*>(from + at.col + 8 * n);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_TILES_CUH_
