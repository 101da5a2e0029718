#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/rope/rope.h"

namespace cadre {
namespace {

constexpr char kOp[] = "rope";
constexpr int kWarps = 4;
// Pairs of a lane: a warp holds a whole slice in registers, so that rotating
// interleaved pairs into halves in place needs no second buffer.
constexpr int kMaxPairs = 8;

// A block is a token. Angles are reduced in double: float intrinsics are wrong
// at position 1e6.
template <typename T, bool kForward>
__global__ void RotateKernel(T* x, const int32_t* __restrict__ positions,
                             const float* __restrict__ inv_freq, int heads,
                             int64_t pitch, int half, int64_t offset,
                             bool interleaved, double factor) {
  __shared__ float cosines[32 * kMaxPairs], sines[32 * kMaxPairs];
  const int64_t t = blockIdx.x;
  const float position = static_cast<float>(positions[t]);
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = __fmul_rn(position, inv_freq[i]);
    double s, c;
    sincos(static_cast<double>(angle), &s, &c);
    cosines[i] = static_cast<float>(c * factor);
    sines[i] = static_cast<float>(s * factor);
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < heads; h += kWarps) {
    T* row = x + (t * heads + h) * pitch + offset;
    float first[kMaxPairs], second[kMaxPairs];
    const bool pairs_in = kForward && interleaved;
    const bool pairs_out = !kForward && interleaved;
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int i = lane + 32 * j;
      if (i >= half) break;
      first[j] = ToFloat(row[pairs_in ? 2 * i : i]);
      second[j] = ToFloat(row[pairs_in ? 2 * i + 1 : i + half]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kMaxPairs; ++j) {
      const int i = lane + 32 * j;
      if (i >= half) break;
      const float c = cosines[i], s = kForward ? sines[i] : -sines[i];
      row[pairs_out ? 2 * i : i] = FromFloat<T>(first[j] * c - second[j] * s);
      row[pairs_out ? 2 * i + 1 : i + half] =
          FromFloat<T>(second[j] * c + first[j] * s);
    }
  }
}

template <bool kForward>
absl::Status Rotate(const Exec& exec, const RopeArgs& args) {
  const int64_t half = args.inv_freq.dim(0);
  if (half > 32 * kMaxPairs) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": the rotated slice has ", 2 * half,
        " elements; the CUDA kernel is compiled for at most ", 64 * kMaxPairs));
  }
  if (half == 0 || args.x.dim(1) == 0) return absl::OkStatus();
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec,
                  {.grid = unsigned(args.x.dim(0)), .block = 32 * kWarps},
                  RotateKernel<T, kForward>, args.x.data<T>(),
                  args.positions.data<int32_t>(), args.inv_freq.data<float>(),
                  args.x.dim(1), args.x.dim(2), half, args.offset,
                  args.interleaved, args.attention_factor);
  });
}

}  // namespace

absl::Status RopeForwardCuda(const Exec& exec, const RopeArgs& args) {
  return Rotate<true>(exec, args);
}

absl::Status RopeBackwardCuda(const Exec& exec, const RopeArgs& args) {
  return Rotate<false>(exec, args);
}

}  // namespace cadre
