#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "cblas.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/tile_cpu.h"

namespace cadre {
namespace {

// Below this many multiply-adds a second thread costs more than it saves.
constexpr int64_t kWorkPerPiece = int64_t{1} << 21;

// One product with everything resolved.
template <typename S>
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  const S* a = nullptr;
  const S* b = nullptr;
  S* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool trans_a = false, trans_b = false;
  double alpha = 1, beta = 0;
};

// ---- float64: OpenBLAS -----------------------------------------------------

// Pieces are whole register tiles of OpenBLAS's kernels (at most 32 rows).
constexpr int64_t kRowQuantum = 32;

// A function-local static, so that it runs once and before the first product.
void HoldOpenBlasAtOneThread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  (void)done;
}

void Multiply(const Exec& exec, const Problem<double>& x) {
  HoldOpenBlasAtOneThread();
  const int64_t grain =
      std::max<int64_t>(kWorkPerPiece / (x.n * x.k), kRowQuantum);
  const int64_t quanta = (x.m + kRowQuantum - 1) / kRowQuantum;
  ParallelFor(exec, quanta, (grain + kRowQuantum - 1) / kRowQuantum,
              [&](int64_t first, int64_t last) {
                const int64_t begin = first * kRowQuantum;
                const int64_t end = std::min(last * kRowQuantum, x.m);
                // Casts are safe: the entry checked every size.
                cblas_dgemm(
                    CblasRowMajor, x.trans_a ? CblasTrans : CblasNoTrans,
                    x.trans_b ? CblasTrans : CblasNoTrans,
                    static_cast<int>(end - begin), static_cast<int>(x.n),
                    static_cast<int>(x.k), x.alpha,
                    x.a + (x.trans_a ? begin : begin * x.lda),
                    static_cast<int>(x.lda), x.b, static_cast<int>(x.ldb),
                    x.beta, x.c + begin * x.ldc, static_cast<int>(x.ldc));
              });
}

// ---- float32: tiles summed in double ---------------------------------------

// Blocks of the result and of k. Rows are a multiple of every tile's height;
// the three buffers take 0.7 MB, about a second-level cache.
constexpr int64_t kBlockRows = 96;
constexpr int64_t kBlockColumns = 192;
constexpr int64_t kBlockDepth = 256;

struct Scratch {
  double a[kBlockRows * kBlockDepth];
  double b[kBlockColumns * kBlockDepth];
  double c[kBlockRows * kBlockColumns];
};

Scratch& ScratchOfThread() {
  thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
  return *scratch;
}

// Lays `count` vectors of `depth` numbers out as [count/width][depth][width],
// zeros where the last group lacks vectors. Number p of vector i lies at
// from[i * across + p * along].
void Pack(const float* from, int64_t across, int64_t along, int64_t count,
          int64_t depth, int64_t width, double* to) {
  for (int64_t first = 0; first < count; first += width, to += depth * width) {
    const int64_t here = std::min(width, count - first);
    const float* const group = from + first * across;
    if (here < width) std::fill_n(to, depth * width, 0.0);
    if (across == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int64_t i = 0; i < here; ++i) {
          to[p * width + i] = group[p * along + i];
        }
      }
    } else {
      // In pieces, so that lines written to stay in the first-level cache.
      constexpr int64_t kPiece = 16;
      for (int64_t begin = 0; begin < depth; begin += kPiece) {
        const int64_t end = std::min(depth, begin + kPiece);
        for (int64_t i = 0; i < here; ++i) {
          const float* const vector = group + i * across;
          for (int64_t p = begin; p < end; ++p) {
            to[p * width + i] = vector[p * along];
          }
        }
      }
    }
  }
}

void MultiplyBlock(const Problem<float>& x, int64_t row, int64_t column) {
  const GemmTile& tile = BestGemmTile();
  Scratch& scratch = ScratchOfThread();
  const int64_t rows = std::min(kBlockRows, x.m - row);
  const int64_t columns = std::min(kBlockColumns, x.n - column);
  const int64_t padded_rows = (rows + tile.rows - 1) / tile.rows * tile.rows;
  const int64_t pitch =
      (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
  std::fill_n(scratch.c, padded_rows * pitch, 0.0);
  const int64_t a_across = x.trans_a ? 1 : x.lda;
  const int64_t a_along = x.trans_a ? x.lda : 1;
  const int64_t b_across = x.trans_b ? x.ldb : 1;
  const int64_t b_along = x.trans_b ? 1 : x.ldb;
  for (int64_t p = 0; p < x.k; p += kBlockDepth) {
    const int64_t depth = std::min(kBlockDepth, x.k - p);
    Pack(x.a + row * a_across + p * a_along, a_across, a_along, rows, depth,
         tile.rows, scratch.a);
    Pack(x.b + column * b_across + p * b_along, b_across, b_along, columns,
         depth, kTileColumns, scratch.b);
    for (int64_t j = 0; j < columns; j += kTileColumns) {
      for (int64_t i = 0; i < rows; i += tile.rows) {
        tile.run(depth, scratch.a + i * depth, scratch.b + j * depth,
                 scratch.c + i * pitch + j, pitch);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    const double* const sums = scratch.c + i * pitch;
    float* const out = x.c + (row + i) * x.ldc + column;
    if (x.beta == 0) {
      for (int64_t j = 0; j < columns; ++j) {
        out[j] = static_cast<float>(x.alpha * sums[j]);
      }
    } else {
      for (int64_t j = 0; j < columns; ++j) {
        out[j] = static_cast<float>(x.alpha * sums[j] + x.beta * out[j]);
      }
    }
  }
}

void Multiply(const Exec& exec, const Problem<float>& x) {
  const int64_t across = (x.n + kBlockColumns - 1) / kBlockColumns;
  const int64_t down = (x.m + kBlockRows - 1) / kBlockRows;
  const int64_t work =
      std::min(x.m, kBlockRows) * std::min(x.n, kBlockColumns) * x.k;
  ParallelFor(exec, across * down, (kWorkPerPiece + work - 1) / work,
              [&](int64_t first, int64_t last) {
                for (int64_t block = first; block < last; ++block) {
                  MultiplyBlock(x, block / across * kBlockRows,
                                block % across * kBlockColumns);
                }
              });
}

// ----------------------------------------------------------------------------

template <typename S>
void ScaleRows(const GemmArgs& args, int64_t ldc) {
  const int64_t n = args.c.dim(1);
  for (int64_t i = 0; i < args.c.dim(0); ++i) {
    S* row = args.c.data<S>() + i * ldc;
    if (args.beta == 0) {
      std::fill_n(row, n, S(0));
    } else {
      for (int64_t j = 0; j < n; ++j) row[j] *= static_cast<S>(args.beta);
    }
  }
}

template <typename S>
absl::Status Run(const Exec& exec, const GemmArgs& args) {
  const Problem<S> problem{
      .m = args.c.dim(0),
      .n = args.c.dim(1),
      .k = args.a.dim(args.trans_a ? 0 : 1),
      .a = args.a.data<S>(),
      .b = args.b.data<S>(),
      .c = args.c.data<S>(),
      .lda = args.lda != 0 ? args.lda : args.a.dim(1),
      .ldb = args.ldb != 0 ? args.ldb : args.b.dim(1),
      .ldc = args.ldc != 0 ? args.ldc : args.c.dim(1),
      .trans_a = args.trans_a,
      .trans_b = args.trans_b,
      .alpha = args.alpha,
      .beta = args.beta,
  };
  if (problem.m == 0 || problem.n == 0) return absl::OkStatus();
  if (problem.k == 0 || problem.alpha == 0) {
    ScaleRows<S>(args, problem.ldc);
  } else {
    Multiply(exec, problem);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GemmCpu(const Exec& exec, const GemmArgs& args) {
  return DispatchCpu(args.a.dtype(), [&](auto scalar) {
    return Run<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
