#ifndef CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_H_
#define CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_H_

// One matrix product per group of consecutive rows, each with its own weight:
// the linear layers of routed experts and of their adapters.
//
//   // y = x W_g^T for the rows of each expert g
//   GroupedGemm(exec, {.mode = GroupedGemmMode::kNT, .x = x, .w = w, .y = y,
//                      .offsets = offsets});

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Which of the three matrices is the result; named by how BLAS sees the
// operands. The other two are inputs.
enum class GroupedGemmMode {
  kNT,  // y = x w^T      forward
  kNN,  // x = y w        gradient of the input from that of the output
  kTN,  // w[g] = y^T x   gradient of the weight
};

struct GroupedGemmArgs {
  GroupedGemmMode mode = GroupedGemmMode::kNT;
  Tensor x;  // [R,K]
  Tensor w;  // [G,N,K]
  Tensor y;  // [R,N]
  // i32[G+1]: group g owns rows [offsets[g], offsets[g+1]). Starts at 0, never
  // falls, ends at most at R. Host memory on the CPU, device memory on CUDA.
  Tensor offsets;
  double alpha = 1;         // scales the product
  bool accumulate = false;  // add to the result instead of overwriting it
};

// result = alpha product (+ result), group by group.
//
// Rows from offsets[G] on belong to no group: inputs there are not read and
// results there not written. An empty group leaves its w alone when
// accumulating, and zeroes it otherwise (kTN). G, R, N and K may be 0.
// Dtypes: x, w, y alike, f32 or f64 on the CPU; bf16 or f32 on CUDA with f32
// sums, and there the w of kTN may be f32 beside bf16 x and y.
// Aliasing: the result overlaps no input.
// Determinism: as Gemm; groups run one after the other on the CPU. On CUDA one
// launch for all groups, whose sizes are read on the device; each result has
// one fixed order of its sum: bitwise, whatever the other groups.
// Cost: 2 offsets[G] N K FLOPs.
absl::Status GroupedGemm(const Exec& exec, const GroupedGemmArgs& args);

// Rows of a tile of y (kNT) and x (kNN): a group costs its rows rounded up to
// whole tiles. 1 where the library that multiplies does not say (f64).
int64_t GroupedGemmTileRows(const Exec& exec, DType dtype);

}  // namespace cadre

#endif  // CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_H_
