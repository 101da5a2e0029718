#ifndef CADRE_KERNELS_GEMM_TILE_CPU_H_
#define CADRE_KERNELS_GEMM_TILE_CPU_H_

// The innermost loop of the CPU product of float32 matrices: a tile of the
// result, summed in double.
//
// Determinism: bitwise, on every processor. The product of two float32 numbers
// is exact in double, so that fused and separate multiply-adds agree; and each
// element is one chain of additions in the order of k, whatever its place in
// the tile, the tile's height or the width of the vectors.
// Thread-safety: pure functions.

#include <cstdint>

namespace cadre {

// Columns of a tile.
inline constexpr int64_t kTileColumns = 16;
// Rows are at most this many on any processor.
inline constexpr int64_t kMaxTileRows = 8;

struct GemmTile {
  int64_t rows = 0;
  // c [rows, 16] += a b: `a` is [k, rows] and `b` is [k, 16], both packed and
  // holding float32 values; rows of c are `pitch` apart.
  void (*run)(int64_t k, const double* a, const double* b, double* c,
              int64_t pitch) = nullptr;
};

// The fastest on this processor.
const GemmTile& BestGemmTile();
// All that this processor can run; for tests.
int NumGemmTiles();
const GemmTile& GemmTileAt(int index);

}  // namespace cadre

#endif  // CADRE_KERNELS_GEMM_TILE_CPU_H_
