#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "cblas.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/gemm/gemm.h"

namespace cadre {
namespace {

// Below this many multiply-adds a second thread costs more than it saves.
constexpr int64_t kWorkPerPiece = int64_t{1} << 21;
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

void Blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k,
          double alpha, const float* a, int lda, const float* b, int ldb,
          double beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, static_cast<float>(alpha), a, lda,
              b, ldb, static_cast<float>(beta), c, ldc);
}

void Blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k,
          double alpha, const double* a, int lda, const double* b, int ldb,
          double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c,
              ldc);
}

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
  const int64_t m = args.c.dim(0);
  const int64_t n = args.c.dim(1);
  const int64_t k = args.a.dim(args.trans_a ? 0 : 1);
  const int64_t lda = args.lda != 0 ? args.lda : args.a.dim(1);
  const int64_t ldb = args.ldb != 0 ? args.ldb : args.b.dim(1);
  const int64_t ldc = args.ldc != 0 ? args.ldc : n;
  if (m == 0 || n == 0) return absl::OkStatus();
  if (k == 0 || args.alpha == 0) {
    ScaleRows<S>(args, ldc);
    return absl::OkStatus();
  }
  HoldOpenBlasAtOneThread();
  const S* const a = args.a.data<S>();
  const S* const b = args.b.data<S>();
  S* const c = args.c.data<S>();
  int64_t grain = std::max<int64_t>(kWorkPerPiece / std::max(n * k, int64_t{1}),
                                    kRowQuantum);
  grain = (grain + kRowQuantum - 1) / kRowQuantum * kRowQuantum;
  const int64_t quanta = (m + kRowQuantum - 1) / kRowQuantum;
  ParallelFor(exec, quanta, grain / kRowQuantum,
              [&](int64_t first, int64_t last) {
                const int64_t begin = first * kRowQuantum;
                const int64_t end = std::min(last * kRowQuantum, m);
                // Casts are safe: the entry checked every size.
                Blas(args.trans_a ? CblasTrans : CblasNoTrans,
                     args.trans_b ? CblasTrans : CblasNoTrans,
                     static_cast<int>(end - begin), static_cast<int>(n),
                     static_cast<int>(k), args.alpha,
                     a + (args.trans_a ? begin : begin * lda),
                     static_cast<int>(lda), b, static_cast<int>(ldb), args.beta,
                     c + begin * ldc, static_cast<int>(ldc));
              });
  return absl::OkStatus();
}

}  // namespace

absl::Status GemmCpu(const Exec& exec, const GemmArgs& args) {
  return DispatchCpu(args.a.dtype(), [&](auto scalar) {
    return Run<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
