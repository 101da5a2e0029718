#include "model/quantized.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/logging.h"

namespace cadre {
namespace {

std::array<float, 256> MakeF8Table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 0xf;
    const int mantissa = code & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa),
                                             exponent - 10);
    if (exponent == 15 && mantissa == 7) {
      value = std::numeric_limits<float>::quiet_NaN();
    }
    table[code] = code & 0x80 ? -value : value;
  }
  return table;
}

const std::array<float, 256>& F8Table() {
  static const std::array<float, 256> table = MakeF8Table();
  return table;
}

constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                             4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                             -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace

float DecodeF8E4M3(uint8_t code) { return F8Table()[code]; }

float DecodeE2M1(uint8_t code) { return kE2M1[code & 0xf]; }

void DequantizeFp8Blocks(absl::Span<const uint8_t> codes,
                         absl::Span<const float> scales, int64_t rows,
                         int64_t cols, absl::Span<float> out) {
  const int64_t blocks = (cols + kFp8Block - 1) / kFp8Block;
  CADRE_CHECK(static_cast<int64_t>(codes.size()) == rows * cols &&
              static_cast<int64_t>(out.size()) == rows * cols &&
              static_cast<int64_t>(scales.size()) ==
                  (rows + kFp8Block - 1) / kFp8Block * blocks)
      << rows << " x " << cols << ", " << scales.size() << " scales";
  const std::array<float, 256>& table = F8Table();
  for (int64_t r = 0; r < rows; ++r) {
    const float* row_scales = scales.data() + r / kFp8Block * blocks;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      out[i] = table[codes[i]] * row_scales[c / kFp8Block];
    }
  }
}

void DequantizeMxfp4(absl::Span<const uint8_t> packed,
                     absl::Span<const uint8_t> scales, int64_t rows,
                     int64_t cols, absl::Span<float> out) {
  CADRE_CHECK(cols % kMxfp4Block == 0 &&
              static_cast<int64_t>(packed.size()) == rows * cols / 2 &&
              static_cast<int64_t>(scales.size()) ==
                  rows * cols / kMxfp4Block &&
              static_cast<int64_t>(out.size()) == rows * cols)
      << rows << " x " << cols;
  for (int64_t block = 0; block < rows * cols / kMxfp4Block; ++block) {
    const float scale = scales[block] == 255
                            ? std::numeric_limits<float>::quiet_NaN()
                            : std::ldexp(1.0f, scales[block] - 127);
    for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
      const int64_t byte = block * kMxfp4Block / 2 + i;
      out[2 * byte] = kE2M1[packed[byte] & 0xf] * scale;
      out[2 * byte + 1] = kE2M1[packed[byte] >> 4] * scale;
    }
  }
}

}  // namespace cadre
