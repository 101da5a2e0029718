#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/mxfp4/mxfp4.h"

namespace cadre {
namespace {

constexpr char kOp[] = "mxfp4";
constexpr int kBlock = 256;

// value(code) 2^(scale - 127), exact. Half a unit in the code's two low bits:
// 0 .5 1 1.5 2 3 4 6.
__device__ __forceinline__ float Decode(int code, int scale) {
  if (scale == 255) return __int_as_float(0x7fc00000);
  constexpr uint32_t kDoubled = 0xC8643210;  // 0 1 2 3 4 6 8 12, a nibble each
  const float doubled = float(kDoubled >> 4 * (code & 7) & 15);
  const float magnitude = ldexpf(doubled, scale - 128);
  return code & 8 ? -magnitude : magnitude;
}

// A thread decodes 8 columns: 4 bytes in, 16 or 32 bytes out.
template <typename T>
__global__ void DecodeKernel(const uint8_t* __restrict__ packed,
                             const uint8_t* __restrict__ scale, int64_t items,
                             T* __restrict__ out) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x; i < items;
       i += stride) {
    const int factor = scale[i / 4];
    float v[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int pair = packed[i * 4 + j];
      v[2 * j] = Decode(pair & 15, factor);
      v[2 * j + 1] = Decode(pair >> 4, factor);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) out[i * 8 + j] = FromFloat<T>(v[j]);
  }
}

}  // namespace

absl::Status Mxfp4DecodeCuda(const Exec& exec, const Mxfp4DecodeArgs& args) {
  const int64_t items = args.out.num_elements() / 8;
  return DispatchCuda(args.out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec, {.grid = GridFor(items, kBlock), .block = kBlock},
                  DecodeKernel<T>,
                  static_cast<const uint8_t*>(args.packed.raw()),
                  static_cast<const uint8_t*>(args.scale.raw()), items,
                  args.out.data<T>());
  });
}

}  // namespace cadre
