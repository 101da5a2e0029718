#ifndef CADRE_KERNELS_ROPE_ROPE_H_
#define CADRE_KERNELS_ROPE_ROPE_H_

// Rotary position embedding, in place on a slice of wider rows. T packed
// tokens, H heads, w the rotated width. Stateless. Inverse frequencies come
// from kernels/rope/rope_frequencies.h.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct RopeArgs {
  Tensor x;          // [T,H,row]: elements [offset, offset + w) of each row
  Tensor positions;  // i32 [T], position inside the document, >= 0
  Tensor inv_freq;   // f32 [w/2]
  int64_t offset = 0;
  // Pairs (x_2i, x_2i+1) instead of (x_i, x_i+w/2). Results are written
  // half-split in either layout.
  bool interleaved = false;
  double attention_factor = 1.0;  // multiplies cos and sin
};

// angle = float32(position) * float32(inv_i), rounded to float32; c, s = its
// cosine and sine times attention_factor, with full range reduction.
//   half-split:  y_i = x_i c - x_{i+w/2} s ;  y_{i+w/2} = x_{i+w/2} c + x_i s
//   interleaved: y_i = x_2i c - x_2i+1 s ;    y_{i+w/2} = x_2i+1 c + x_2i s
// The rest of the row is left alone. T, H and w may be 0.
// f32 or f64 on the CPU (the angle is float32 in both); bf16 or f32 on CUDA.
// Determinism: bitwise. Positions must be the document's own: they restart.
absl::Status RopeForward(const Exec& exec, const RopeArgs& args);

// The transpose, on gradients: x holds dy before and dx after.
absl::Status RopeBackward(const Exec& exec, const RopeArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ROPE_ROPE_H_
