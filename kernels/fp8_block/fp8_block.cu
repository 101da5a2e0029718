#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/fp8_block/fp8_block.h"

namespace cadre {
namespace {

constexpr char kOp[] = "fp8_block";
constexpr int kBlock = 256;

__device__ __forceinline__ float Value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float magnitude;
  if (exponent == 15 && mantissa == 7) {
    magnitude = __int_as_float(0x7fc00000);
  } else if (exponent == 0) {
    magnitude = float(mantissa) * 0x1p-9f;
  } else {
    magnitude =
        __uint_as_float(uint32_t(exponent + 120) << 23 | mantissa << 20);
  }
  return code & 0x80 ? -magnitude : magnitude;
}

template <typename T>
__global__ void DecodeKernel(const uint8_t* __restrict__ weight,
                             const float* __restrict__ scale, int64_t rows,
                             int64_t columns, int64_t scale_columns,
                             T* __restrict__ out) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t at = int64_t(blockIdx.x) * kBlock + threadIdx.x;
       at < rows * columns; at += stride) {
    const int64_t i = at / columns, j = at - i * columns;
    out[at] = FromFloat<T>(
        __fmul_rn(Value(weight[at]), scale[i / 128 * scale_columns + j / 128]));
  }
}

}  // namespace

absl::Status Fp8BlockDecodeCuda(const Exec& exec,
                                const Fp8BlockDecodeArgs& args) {
  const int64_t rows = args.out.dim(0), columns = args.out.dim(1);
  return DispatchCuda(args.out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(
        kOp, exec, {.grid = GridFor(rows * columns, kBlock), .block = kBlock},
        DecodeKernel<T>, static_cast<const uint8_t*>(args.weight.raw()),
        args.scale_inv.data<float>(), rows, columns, args.scale_inv.dim(1),
        args.out.data<T>());
  });
}

}  // namespace cadre
