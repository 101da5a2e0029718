#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_

// The products of a warp in finish.cuh, and the layouts of their operands.
// Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

constexpr int kScorePitch = 68;  // floats

// f32 [64,128], permuted so that the operand reads below meet no bank twice.
__device__ __forceinline__ int Deep(int row, int col) {
  return row * kDim + (col ^ ((row & 3) << 3));
}

// Sum over the four lanes of a quad.
__device__ __forceinline__ float QuadSum(float x) {
  x += ShuffleXor(x, 1);
  return x + ShuffleXor(x, 2);
}
// Sum over lanes of equal quad position: a column of an accumulator.
__device__ __forceinline__ float GroupSum(float x) {
  x += ShuffleXor(x, 4);
  x += ShuffleXor(x, 8);
  return x + ShuffleXor(x, 16);
}

// acc[m][16,32] += a[m][16,128] b[128,32], rows of wide tiles, b of a state
// tile.
template <int kCount>
__device__ __forceinline__ void MultiplyState(
    float (&acc)[kCount][4][4], const uint16_t* const (&a)[kCount],
    const uint16_t* state, int row, int col, int lane) {
  const Steps at(row + RowsFirstRow(lane), RowsFirstCol(lane));
  const uint16_t* b_at[2] = {
      state + Wide<kDim>(RowsFirstRow(lane), col + RowsFirstCol(lane)),
      state + Wide<kDim>(RowsFirstRow(lane), col + 16 + RowsFirstCol(lane))};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint32_t af[kCount][4], b[4];
#pragma unroll
    for (int m = 0; m < kCount; ++m) LoadMatrix4(af[m], a[m] + at(k));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      LoadMatrix4Trans(b, b_at[n] + 16 * k * 64);
#pragma unroll
      for (int m = 0; m < kCount; ++m) {
        MmaBf16(acc[m][2 * n], af[m], b[0], b[1]);
        MmaBf16(acc[m][2 * n + 1], af[m], b[2], b[3]);
      }
    }
  }
}

// acc[16,16] += rows of a times rows of b, both wide tiles.
__device__ __forceinline__ void MultiplyRows(float (&acc)[2][4],
                                             const uint16_t* a,
                                             const uint16_t* b, int row_a,
                                             int row_b, int lane) {
  const Steps a_at(row_a + RowsFirstRow(lane), RowsFirstCol(lane));
  const Steps b_at(row_b + ColsFirstRow(lane), ColsFirstCol(lane));
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    uint32_t af[4], bf[4];
    LoadMatrix4(af, a + a_at(k));
    LoadMatrix4(bf, b + b_at(k));
    MmaBf16(acc[0], af, bf[0], bf[1]);
    MmaBf16(acc[1], af, bf[2], bf[3]);
  }
}

// acc[16,32] += Inv^T b for block row `row_block`, b a wide tile.
__device__ __forceinline__ void MultiplyInverse(float (&acc)[4][4],
                                                const uint16_t* inverse,
                                                const uint16_t* b,
                                                int row_block, int col,
                                                int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < row_block) continue;
    uint32_t af[4], bf[4];
    LoadMatrix4Trans(af, inverse + Square(16 * k + ColsFirstRow(lane),
                                          16 * row_block + ColsFirstCol(lane)));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      LoadMatrix4Trans(bf, b + Wide(16 * k + RowsFirstRow(lane),
                                    col + 16 * n + RowsFirstCol(lane)));
      MmaBf16(acc[2 * n], af, bf[0], bf[1]);
      MmaBf16(acc[2 * n + 1], af, bf[2], bf[3]);
    }
  }
}

// Score matrices and deep tiles hold values rounded to tf32.
__device__ __forceinline__ float Tf32(float x) {
  return __uint_as_float(ToTf32(x));
}

__device__ __forceinline__ void DropDiagonal(uint32_t (&a)[4], int row, int col,
                                             int lane) {
  const int off = row + (lane >> 2) - col - (lane & 3);
  if (off == 0) a[0] = 0;
  if (off + 8 == 0) a[1] = 0;
  if (off == 4) a[2] = 0;
  if (off + 4 == 0) a[3] = 0;
}
// A operand [16,8] of a score matrix, or of its transpose. Where it lies on the
// diagonal, that itself is taken as zero: it is dealt with in f32, since what
// it gives to dG cancels.
__device__ __forceinline__ void LoadScores(uint32_t (&a)[4], const float* m,
                                           int row, int col, bool diagonal,
                                           int lane) {
  const float* at = m + (row + (lane >> 2)) * kScorePitch + col + (lane & 3);
  a[0] = __float_as_uint(at[0]);
  a[1] = __float_as_uint(at[8 * kScorePitch]);
  a[2] = __float_as_uint(at[4]);
  a[3] = __float_as_uint(at[8 * kScorePitch + 4]);
  if (diagonal) DropDiagonal(a, row, col, lane);
}
__device__ __forceinline__ void LoadScoresTrans(uint32_t (&a)[4],
                                                const float* m, int row,
                                                int col, bool diagonal,
                                                int lane) {
  const float* at = m + (col + (lane & 3)) * kScorePitch + row + (lane >> 2);
  a[0] = __float_as_uint(at[0]);
  a[1] = __float_as_uint(at[8]);
  a[2] = __float_as_uint(at[4 * kScorePitch]);
  a[3] = __float_as_uint(at[4 * kScorePitch + 8]);
  if (diagonal) DropDiagonal(a, row, col, lane);
}
// Offset of a column in the rows that a lane reads as B operand.
__device__ __forceinline__ int DeepColumn(int col, int lane) {
  return (lane & 3) * kDim + ((col + (lane >> 2)) ^ ((lane & 3) << 3));
}
// B operand [8,8] of a deep tile; row a multiple of 8.
__device__ __forceinline__ void LoadDeep(uint32_t (&b)[2], const float* m,
                                         int row, int offset) {
  b[0] = __float_as_uint(m[row * kDim + offset]);
  b[1] = __float_as_uint(m[(row + 4) * kDim + offset]);
}

__device__ __forceinline__ void ScaleColumns(float (&acc)[4][4],
                                             const float* factor, int col,
                                             int quad) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 f =
        *reinterpret_cast<const float2*>(factor + col + 8 * n + 2 * quad);
    acc[n][0] *= f.x;
    acc[n][1] *= f.y;
    acc[n][2] *= f.x;
    acc[n][3] *= f.y;
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_
