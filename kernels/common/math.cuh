#ifndef CADRE_KERNELS_COMMON_MATH_CUH_
#define CADRE_KERNELS_COMMON_MATH_CUH_

// Activations in float32, as kernels/common/scalar_math.h defines them for the
// CPU: exp is only taken of negative numbers, or of small ones. Device code,
// pure.

#include <cmath>

namespace cadre::device {

__device__ __forceinline__ float Sigmoid(float x) {
  const float e = expf(-fabsf(x));
  const float s = __fdividef(1.0f, 1.0f + e);
  return x >= 0 ? s : e * s;
}
__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }
__device__ __forceinline__ float SiluGrad(float x) {
  const float s = Sigmoid(x);
  return s * (1 + x * (1 - s));
}
// log(1 + e^x), the identity above 20 (as PyTorch defines it).
__device__ __forceinline__ float Softplus(float x) {
  return x > 20 ? x : log1pf(expf(x));
}
__device__ __forceinline__ float SoftplusGrad(float x) {
  return x > 20 ? 1.0f : Sigmoid(x);
}

}  // namespace cadre::device

#endif  // CADRE_KERNELS_COMMON_MATH_CUH_
