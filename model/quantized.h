#ifndef CADRE_MODEL_QUANTIZED_H_
#define CADRE_MODEL_QUANTIZED_H_

// Decoders of quantised weights (models.md 1.2 and 5.8). Exact: every decoded
// value is representable in float32, so both products round at most once.
// Pure; thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace cadre {

// Value of an E4M3 byte (1-4-3, bias 7, no infinity; 0x7f and 0xff are NaN).
float DecodeF8E4M3(uint8_t code);
// Value of an E2M1 code, 0..15.
float DecodeE2M1(uint8_t code);

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kMxfp4Block = 32;

// out[rows, cols] = fp8 value x scale of its 128 x 128 block. `scales` is
// [ceil(rows/128), ceil(cols/128)].
void DequantizeFp8Blocks(absl::Span<const uint8_t> codes,
                         absl::Span<const float> scales, int64_t rows,
                         int64_t cols, absl::Span<float> out);

// out[rows, cols] = E2M1 value x 2^(scale - 127). `packed` is [rows, cols / 2],
// low nibble first; `scales` [rows, cols / 32]. cols is a multiple of 32.
void DequantizeMxfp4(absl::Span<const uint8_t> packed,
                     absl::Span<const uint8_t> scales, int64_t rows,
                     int64_t cols, absl::Span<float> out);

}  // namespace cadre

#endif  // CADRE_MODEL_QUANTIZED_H_
