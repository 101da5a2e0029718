#include "kernels/gemm/tile_cpu.h"

#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cadre {
namespace {

constexpr int kPortableRows = 4;

void PortableTile(int64_t k, const double* a, const double* b, double* c,
                  int64_t pitch) {
  double sums[kPortableRows][kTileColumns];
  for (int i = 0; i < kPortableRows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) sums[i][j] = c[i * pitch + j];
  }
  for (int64_t p = 0; p < k; ++p, a += kPortableRows, b += kTileColumns) {
    for (int i = 0; i < kPortableRows; ++i) {
      for (int j = 0; j < kTileColumns; ++j) sums[i][j] += a[i] * b[j];
    }
  }
  for (int i = 0; i < kPortableRows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) c[i * pitch + j] = sums[i][j];
  }
}

#if defined(__x86_64__)

// 6 x 8 sums fill 12 of the 16 registers; 16 columns are two passes.
constexpr int kAvx2Rows = 6;

__attribute__((target("avx2,fma"))) void Avx2Tile(int64_t k, const double* a,
                                                  const double* b, double* c,
                                                  int64_t pitch) {
  for (int64_t half = 0; half < kTileColumns; half += 8) {
    __m256d sums[kAvx2Rows][2];
    double* const out = c + half;
#pragma GCC unroll 6
    for (int i = 0; i < kAvx2Rows; ++i) {
      sums[i][0] = _mm256_loadu_pd(out + i * pitch);
      sums[i][1] = _mm256_loadu_pd(out + i * pitch + 4);
    }
    const double* left = a;
    const double* right = b + half;
    for (int64_t p = 0; p < k; ++p, left += kAvx2Rows, right += kTileColumns) {
      const __m256d b0 = _mm256_loadu_pd(right);
      const __m256d b1 = _mm256_loadu_pd(right + 4);
#pragma GCC unroll 6
      for (int i = 0; i < kAvx2Rows; ++i) {
        const __m256d x = _mm256_set1_pd(left[i]);
        sums[i][0] = _mm256_fmadd_pd(x, b0, sums[i][0]);
        sums[i][1] = _mm256_fmadd_pd(x, b1, sums[i][1]);
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < kAvx2Rows; ++i) {
      _mm256_storeu_pd(out + i * pitch, sums[i][0]);
      _mm256_storeu_pd(out + i * pitch + 4, sums[i][1]);
    }
  }
}

constexpr int kAvx512Rows = 8;

__attribute__((target("avx512f"))) void Avx512Tile(int64_t k, const double* a,
                                                   const double* b, double* c,
                                                   int64_t pitch) {
  __m512d sums[kAvx512Rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < kAvx512Rows; ++i) {
    sums[i][0] = _mm512_loadu_pd(c + i * pitch);
    sums[i][1] = _mm512_loadu_pd(c + i * pitch + 8);
  }
  for (int64_t p = 0; p < k; ++p, a += kAvx512Rows, b += kTileColumns) {
    const __m512d b0 = _mm512_loadu_pd(b);
    const __m512d b1 = _mm512_loadu_pd(b + 8);
#pragma GCC unroll 8
    for (int i = 0; i < kAvx512Rows; ++i) {
      const __m512d x = _mm512_set1_pd(a[i]);
      sums[i][0] = _mm512_fmadd_pd(x, b0, sums[i][0]);
      sums[i][1] = _mm512_fmadd_pd(x, b1, sums[i][1]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kAvx512Rows; ++i) {
    _mm512_storeu_pd(c + i * pitch, sums[i][0]);
    _mm512_storeu_pd(c + i * pitch + 8, sums[i][1]);
  }
}

#endif

// Slowest first.
const std::vector<GemmTile>& Tiles() {
  static const std::vector<GemmTile>& tiles = *[] {
    auto* list = new std::vector<GemmTile>{{kPortableRows, PortableTile}};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      list->push_back({kAvx2Rows, Avx2Tile});
    }
    if (__builtin_cpu_supports("avx512f")) {
      list->push_back({kAvx512Rows, Avx512Tile});
    }
#endif
    return list;
  }();
  return tiles;
}

}  // namespace

const GemmTile& BestGemmTile() { return Tiles().back(); }

int NumGemmTiles() { return static_cast<int>(Tiles().size()); }

const GemmTile& GemmTileAt(int index) {
  return Tiles()[static_cast<size_t>(index)];
}

}  // namespace cadre
