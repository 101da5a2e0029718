#ifndef CADRE_KERNELS_MOE_PERMUTE_MOE_PERMUTE_H_
#define CADRE_KERNELS_MOE_PERMUTE_MOE_PERMUTE_H_

// Puts (token, slot) pairs into expert order and brings expert outputs back.
// T tokens, k slots a token, E experts, R rows in expert order. Stateless.
//
//   MoePermute: ids -> tables;  MoeGather: tokens -> rows;  (experts)
//   MoeCombine: rows -> tokens, weighted
// Backward: of MoeGather it is MoeCombine without weights; of MoeCombine it is
// MoeCombineBackward.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct MoePermuteArgs {
  Tensor ids;  // i32 [T,k], in [0,E), or -1: this pair has no row
  // All overwritten.
  Tensor offsets;     // i32 [E+1]: expert e owns rows offsets[e]..offsets[e+1]
  Tensor row_source;  // i32 [T*k]: token * k + slot of each row; -1 at the end
  Tensor row_of;      // i32 [T,k]: the row of a pair, or -1
};

// Order of rows: expert, then token, then slot (stable). R = offsets[E].
// INVALID_ARGUMENT for an id outside [-1,E) (CPU) or T k >= 2^31.
absl::Status MoePermute(const Exec& exec, const MoePermuteArgs& args);

struct MoeGatherArgs {
  Tensor x;           // [T,D]
  Tensor row_source;  // i32 [>= R]
  int64_t top_k = 1;
  Tensor rows;  // [R,D], overwritten: x[row_source[r] / top_k], or zeros for -1
};
absl::Status MoeGather(const Exec& exec, const MoeGatherArgs& args);

struct MoeCombineArgs {
  Tensor rows;     // [R,D]
  Tensor row_of;   // i32 [T,k]
  Tensor weights;  // [T,k]; absent = all ones
  Tensor y;        // [T,D] = sum over slots of weight * row, in slot order
  bool accumulate = false;  // y += instead of y =
};
absl::Status MoeCombine(const Exec& exec, const MoeCombineArgs& args);

struct MoeCombineBackwardArgs {
  Tensor dy;          // [T,D]
  Tensor row_source;  // i32 [>= R]
  Tensor row_of;      // i32 [T,k]
  Tensor weights;     // [T,k]; absent = all ones
  // [R,D] as given to the forward; only read for dweights.
  Tensor rows;
  Tensor drows;     // [R,D], overwritten: weight * dy, zeros for rows of -1
  Tensor dweights;  // [T,k], overwritten: <dy, row>, 0 for -1; optional
};
// drows may be rows itself when dweights is wanted too: each row is read for
// its weight before it is overwritten.
absl::Status MoeCombineBackward(const Exec& exec,
                                const MoeCombineBackwardArgs& args);

// Of all four: x, rows, y, weights of one dtype, f32 or f64 on the CPU, sums in
// that type; bf16 with f32 weights on CUDA. T, R, D may be 0. Outputs overlap
// no input but where said. Bitwise deterministic: no atomics, fixed slot order.

}  // namespace cadre

#endif  // CADRE_KERNELS_MOE_PERMUTE_MOE_PERMUTE_H_
