#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PAD_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_PAD_H_

// Where the tensors of KDA and Gated DeltaNet with keys or values of 64 lie
// once they are widened to the 128 of the chunked kernels (pad.cuh), and how
// much device memory that takes. Private to kernels/{kda,gdn}. Pure functions,
// no CUDA.

#include <cstdint>

#include "kernels/linear_attention/workspace.h"

namespace cadre::linear_attention {

inline constexpr int64_t kPaddedDim = 128;

struct PadShape {
  WorkShape work;
  int64_t key_dim, value_dim;  // 64 or 128
  bool head_gate;              // Gated DeltaNet
  bool initial_state;          // whether there is one
};

// Offsets in bytes; each a multiple of 256. -1: not there, or used where the
// caller has it.
struct PadLayout {
  int64_t q, k, v, z, dt_bias, initial_state;
  int64_t o, final_state;                             // forward
  int64_t d_o, d_final_state;                         // backward
  int64_t dq, dk, dv, dz, ddt_bias, d_initial_state;  // backward
  int64_t work;                                       // LayOutWork
  int64_t bytes;
};

// Monotone in tokens and documents. Has room for every optional output,
// and for d_final_state: the inputs, by which callers ask, do not tell.
inline PadLayout LayOutPad(const PadShape& shape) {
  const WorkShape& work = shape.work;
  const bool keys = shape.key_dim != kPaddedDim;
  const bool values = shape.value_dim != kPaddedDim;
  int64_t end = 0;
  const auto take = [&end](bool wanted, int64_t bytes) {
    if (!wanted) return int64_t{-1};
    const int64_t at = end;
    end += (bytes + 255) / 256 * 256;
    return at;
  };
  const int64_t key_rows = work.tokens * work.key_heads * kPaddedDim * 2;
  const int64_t rows = work.tokens * work.heads * kPaddedDim * 2;
  const int64_t bias = work.heads * kPaddedDim * 4;
  const int64_t state = work.docs * work.heads * kPaddedDim * kPaddedDim * 4;
  const bool gate = keys && !shape.head_gate;
  const bool forward = !work.backward, backward = work.backward;
  PadLayout at{};
  at.q = take(keys, key_rows);
  at.k = take(keys, key_rows);
  at.v = take(values, rows);
  at.z = take(gate, rows);
  at.dt_bias = take(gate, bias);
  at.initial_state = take(shape.initial_state, state);
  at.o = take(forward && values, rows);
  at.final_state = take(forward, state);
  at.d_o = take(backward && values, rows);
  at.d_final_state = take(backward, state);
  at.dq = take(backward && keys, key_rows);
  at.dk = take(backward && keys, key_rows);
  at.dv = take(backward && values, rows);
  at.dz = take(backward && gate, rows);
  at.ddt_bias = take(backward && gate, bias);
  at.d_initial_state = take(backward, state);
  at.work = take(true, LayOutWork(work).bytes);
  at.bytes = end;
  return at;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PAD_H_
