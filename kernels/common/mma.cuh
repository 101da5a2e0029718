#ifndef CADRE_KERNELS_COMMON_MMA_CUH_
#define CADRE_KERNELS_COMMON_MMA_CUH_

// bf16 tensor-core products of one warp (mma.sync m16n8k16, f32 sums), and the
// tiles in shared memory that feed them. Device code.
//
// A tile is [rows][kCols] bf16, kCols a multiple of 64; 16-byte chunk c of row
// r lies at chunk c ^ (r % 8), so that the eight rows of a matrix load touch
// all banks.
//
// Fragments. Of a 16 x 8 accumulator, lane l holds c[0], c[1] at row l / 4,
// columns 2 (l % 4) and the next, and c[2], c[3] eight rows below.

#include <cuda_bf16.h>

#include <cstdint>

namespace cadre::mma {

using Bf16 = __nv_bfloat16;

template <int kCols>
__device__ __forceinline__ uint32_t TileAddress(const Bf16* tile, int row,
                                                int chunk) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(
      tile + row * kCols + ((chunk ^ (row & 7)) << 3)));
}

__device__ __forceinline__ void LoadMatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadMatrixTransposed(uint32_t (&r)[4],
                                                     uint32_t address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address));
}

// A operand: rows [row, row + 16), columns [col, col + 16) of a tile.
template <int kCols>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], const Bf16* tile,
                                      int row, int col) {
  const int lane = threadIdx.x % 32;
  LoadMatrix(
      a, TileAddress<kCols>(tile, row + (lane & 15), (col >> 3) + (lane >> 4)));
}

// Two B operands (n and n + 8) of a tile stored [n][k]: b[0..1] and b[2..3].
template <int kCols>
__device__ __forceinline__ void LoadB(uint32_t (&b)[4], const Bf16* tile, int n,
                                      int k) {
  const int lane = threadIdx.x % 32;
  LoadMatrix(b, TileAddress<kCols>(tile, n + (lane & 7) + ((lane >> 4) << 3),
                                   (k >> 3) + ((lane >> 3) & 1)));
}

// The same of a tile stored [k][n].
template <int kCols>
__device__ __forceinline__ void LoadBTransposed(uint32_t (&b)[4],
                                                const Bf16* tile, int k,
                                                int n) {
  const int lane = threadIdx.x % 32;
  LoadMatrixTransposed(
      b, TileAddress<kCols>(tile, k + (lane & 15), (n >> 3) + (lane >> 4)));
}

__device__ __forceinline__ void Multiply(float (&c)[4], const uint32_t (&a)[4],
                                         uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two neighbouring columns, the first in the low half.
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Rows of a matrix in global memory.
struct Rows {
  const Bf16* data;  // of the first row
  int64_t pitch;
  int64_t count;  // rows behind these are zero
  int width;      // columns behind these are zero
  bool vector;    // data and pitch allow accesses of 16 bytes
};

// Starts copying a tile; CopyCommit and CopyWait, then a barrier, end it.
template <int kRows, int kCols, int kThreads>
__device__ __forceinline__ void CopyTile(Bf16* tile, const Rows& rows) {
  constexpr int kChunks = kCols / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int r = i / kChunks, c = i % kChunks;
    Bf16* const to = tile + r * kCols + ((c ^ (r & 7)) << 3);
    const bool inside = r < rows.count && c * 8 < rows.width;
    if (rows.vector) {
      const Bf16* const from =
          inside ? rows.data + r * rows.pitch + c * 8 : rows.data;
      const uint32_t address =
          static_cast<uint32_t>(__cvta_generic_to_shared(to));
      asm volatile(
          "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
          "l"(from), "r"(inside ? 16 : 0));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        to[j] = inside && c * 8 + j < rows.width
                    ? rows.data[r * rows.pitch + c * 8 + j]
                    : __float2bfloat16_rn(0);
      }
    }
  }
}
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;");
}
// Until at most kPending of the committed groups are under way.
template <int kPending>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

}  // namespace cadre::mma

#endif  // CADRE_KERNELS_COMMON_MMA_CUH_
