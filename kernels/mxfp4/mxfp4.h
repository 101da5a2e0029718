#ifndef CADRE_KERNELS_MXFP4_MXFP4_H_
#define CADRE_KERNELS_MXFP4_MXFP4_H_

// Decodes MXFP4 weights (E2M1 pairs with one power-of-two scale per 32
// columns), as kimi_k3 stores its experts. Stateless.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct Mxfp4DecodeArgs {
  Tensor packed;  // u8 [N,K/2], low nibble = even column
  Tensor scale;   // u8 [N,K/32], exponent with bias 127
  Tensor out;     // [N,K], f32 or f64 on the CPU
};

// out = value(code) 2^(scale - 127), magnitudes 0 .5 1 1.5 2 3 4 6, bit 3 the
// sign (code 8 is -0). Exact, subnormals included, but that products of 2^128
// and more are infinite in float32; scale 255 is NaN by the format. K is a
// multiple of 32; N, K may be 0. A leading expert dim is allowed: [E,N,...].
absl::Status Mxfp4Decode(const Exec& exec, const Mxfp4DecodeArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_MXFP4_MXFP4_H_
