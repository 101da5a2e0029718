#include <cmath>
#include <limits>

#include "kernels/common/check.h"
#include "kernels/mxfp4/mxfp4.h"

namespace cadre {
namespace {

constexpr float kMagnitudes[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
constexpr int kScaleBias = 127;
constexpr int kNanScale = 255;

float Value(int code, int scale) {
  if (scale == kNanScale) return std::numeric_limits<float>::quiet_NaN();
  // ldexp is exact where a product with 2^(scale - 127) as a float32 is not
  // for certain: the factor itself is subnormal at scale 0.
  const float magnitude = std::ldexp(kMagnitudes[code & 7], scale - kScaleBias);
  return (code & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace

absl::Status Mxfp4DecodeCpu(const Exec& exec, const Mxfp4DecodeArgs& args) {
  return DispatchCpu(args.out.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_blocks = args.scale.num_elements();
    const auto* const packed =
        static_cast<const unsigned char*>(args.packed.raw());
    const auto* const scales =
        static_cast<const unsigned char*>(args.scale.raw());
    T* const out = args.out.data<T>();
    ParallelFor(exec, num_blocks, 64, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        T values[16];
        for (int code = 0; code < 16; ++code)
          values[code] = static_cast<T>(Value(code, scales[block]));
        for (int64_t i = 0; i < 16; ++i) {
          const unsigned char pair = packed[block * 16 + i];
          out[block * 32 + 2 * i] = values[pair & 15];
          out[block * 32 + 2 * i + 1] = values[pair >> 4];
        }
      }
    });
    return absl::OkStatus();
  });
}

}  // namespace cadre
