#ifndef CADRE_KERNELS_GEMM_GEMM_H_
#define CADRE_KERNELS_GEMM_GEMM_H_

// Row-major matrix product: own code (CPU, f32), OpenBLAS (CPU, f64) or
// cuBLASLt (CUDA).
//
//   // y = x W^T, x [T,D], w [O,D], y [T,O]
//   CADRE_RETURN_IF_ERROR(
//       Gemm(exec, {.a = x, .b = w, .c = y, .trans_b = true}));

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct GemmArgs {
  Tensor a;  // [M,K], or [K,M] with trans_a
  Tensor b;  // [K,N], or [N,K] with trans_b
  Tensor c;  // [M,N]
  bool trans_a = false;
  bool trans_b = false;
  double alpha = 1;
  double beta = 0;
  // Elements between the starts of two rows as stored; 0 = the row length of
  // the tensor (packed). With a larger pitch the view's dims are still those
  // of the matrix, and its last row need not be followed by padding.
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
};

// c = alpha op(a) op(b) + beta c.
//
// Shapes and dtypes: matrices of rank 2, all of one dtype: f32 or f64 on the
// CPU; bf16 or f32 on CUDA with f32 sums (f32 in full precision, no TF32), and
// there c may be f32 beside bf16 a and b. Any of M, N, K may be 0; with K = 0
// only beta acts. With beta = 0, c is not read, so it may hold anything.
// Aliasing: c overlaps neither a nor b.
// Accuracy on the CPU: f32 results are sums in double, rounded once.
// Determinism on the CPU, f32: bitwise on every processor and for any thread
// pool; an element depends on its row of op(a), its column of op(b) and nothing
// else, so rows may move, be added or be left out (packing, padding, dispatch).
// f64: bitwise for equal shapes on one machine, whatever the pool: rows of c
// are cut into pieces by shape alone, and OpenBLAS is held at one thread from
// the first call on (a process-wide setting of that library).
// On CUDA for equal shapes and alignments on one GPU type: the algorithm is
// chosen once per shape, by cuBLASLt's ranking, and sums have a fixed order.
// Memory: the CPU keeps 0.7 MB per thread for f32; CUDA keeps 64 MiB of
// workspace per stream and a plan per shape; both are made at the first call
// with it, so steady steps allocate nothing. Limits: each of M, N, K and the
// pitches < 2^31. Cost: 2 M N K FLOPs.
absl::Status Gemm(const Exec& exec, const GemmArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_GEMM_GEMM_H_
