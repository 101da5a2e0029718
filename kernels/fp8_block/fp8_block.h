#ifndef CADRE_KERNELS_FP8_BLOCK_FP8_BLOCK_H_
#define CADRE_KERNELS_FP8_BLOCK_FP8_BLOCK_H_

// Decodes FP8 E4M3 weights with one scale per 128 x 128 block, as DeepSeek and
// GLM store them. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Value of an E4M3 code ("FN": no infinities, 0x7f and 0xff are NaN).
float DecodeE4m3(uint8_t code);

struct Fp8BlockDecodeArgs {
  Tensor weight;     // f8_e4m3 or u8 [N,K]
  Tensor scale_inv;  // f32 [ceil(N/128), ceil(K/128)]
  Tensor out;        // [N,K], f32 or f64 on the CPU
};

// out[i,j] = value(weight[i,j]) * scale_inv[i/128, j/128], one float32 product.
// N and K need not be multiples of 128 and may be 0.
absl::Status Fp8BlockDecode(const Exec& exec, const Fp8BlockDecodeArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_FP8_BLOCK_FP8_BLOCK_H_
