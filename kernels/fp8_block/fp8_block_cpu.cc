#include <array>
#include <cmath>
#include <limits>

#include "kernels/common/check.h"
#include "kernels/fp8_block/fp8_block.h"

namespace cadre {

float DecodeE4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  float magnitude;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

absl::Status Fp8BlockDecodeCpu(const Exec& exec,
                               const Fp8BlockDecodeArgs& args) {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code)
    values[code] = DecodeE4m3(static_cast<uint8_t>(code));
  return DispatchCpu(args.out.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t columns = args.out.dim(1);
    const int64_t scale_columns = args.scale_inv.dim(1);
    const auto* const weight =
        static_cast<const unsigned char*>(args.weight.raw());
    const float* const scale = args.scale_inv.data<float>();
    T* const out = args.out.data<T>();
    ParallelFor(exec, args.out.dim(0), 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* const row_scale = scale + i / 128 * scale_columns;
        for (int64_t j = 0; j < columns; ++j) {
          const float product =
              values[weight[i * columns + j]] * row_scale[j / 128];
          out[i * columns + j] = static_cast<T>(product);
        }
      }
    });
    return absl::OkStatus();
  });
}

}  // namespace cadre
