#ifndef CADRE_KERNELS_COMMON_VEC_CUH_
#define CADRE_KERNELS_COMMON_VEC_CUH_

// Conversions between activations (float, bf16) and float, and loads and stores
// of several consecutive elements in one instruction. Device code, pure.

#include <cuda_bf16.h>

#include <cstdint>

namespace cadre {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// The value `x` has after a round trip through T.
template <typename T>
__device__ __forceinline__ float RoundTo(float x) {
  return ToFloat(FromFloat<T>(x));
}

// Elements of T in 16 bytes.
template <typename T>
inline constexpr int kVec = 16 / static_cast<int>(sizeof(T));

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// N consecutive elements from `p`, which is aligned to N * sizeof(T).
template <int N, typename T>
__device__ __forceinline__ void LoadVec(const T* p, float (&out)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(p);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = ToFloat(pack.v[i]);
}

template <int N, typename T>
__device__ __forceinline__ void StoreVec(T* p, const float (&in)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.v[i] = FromFloat<T>(in[i]);
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_VEC_CUH_
