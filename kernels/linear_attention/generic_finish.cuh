#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FINISH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FINISH_CUH_

// The end of delta_rule_generic.cu's backward: sums over value heads and the
// gate's own gradients. Device code; private to that file.

#include "kernels/linear_attention/generic_backward.cuh"

namespace cadre::linear_attention::generic {

// dq and dk: sums over the value heads that share a key head; zeros for
// padding.
template <typename T>
__global__ void FinishKeysKernel(const Problem<T> p, Sums sums, T* dq, T* dk) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t n = p.tokens * p.key_heads * p.key_dim;
  const int repeats = p.heads / p.key_heads;
  for (int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < n;
       at += stride) {
    const int64_t head = at / p.key_dim, i = at - head * p.key_dim;
    float q = 0, k = 0;
    if (head / p.key_heads < p.cu[p.docs]) {
      for (int r = 0; r < repeats; ++r) {
        q += sums.dq[(head * repeats + r) * p.key_dim + i];
        k += sums.dk[(head * repeats + r) * p.key_dim + i];
      }
    }
    dq[at] = FromFloat<T>(q);
    dk[at] = FromFloat<T>(k);
  }
}

// A warp is a token and head: decay logits and beta.
template <typename T>
__global__ void FinishGatesKernel(const Problem<T> p, Sums sums, T* dz,
                                  float* da, float* dbeta) {
  const int lane = threadIdx.x % 32;
  const int64_t item =
      int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (item >= p.tokens * p.heads) return;
  const int64_t t = item / p.heads;
  const int h = static_cast<int>(item % p.heads);
  const bool real = t < p.cu[p.docs];
  float sum = 0;
  for (int i = lane; i < p.key_dim; i += 32) {
    const float dlog = real ? sums.dlog[item * p.key_dim + i] : 0;
    sum += dlog;
    if (dz != nullptr) {
      dz[item * p.key_dim + i] =
          FromFloat<T>(real ? dlog * p.Slope(h, p.Logit(t, h, i)) : 0);
    }
  }
  sum = WarpSum(sum);
  if (lane != 0) return;
  if (da != nullptr) da[item] = real ? sum * p.Slope(h, p.Logit(t, h, 0)) : 0;
  const float b = device::Sigmoid(real ? p.beta[item] : 0);
  dbeta[item] = real ? sums.dbeta[item] * b * (1 - b) : 0;
}

// Terms of da_log (rows: tokens and channels, columns: heads) and of ddt_bias
// (rows: tokens; columns: heads and channels, or heads).
template <typename T>
struct RateTerm {
  Problem<T> p;
  const float* dlog;
  __device__ float operator()(int64_t row, int64_t h) const {
    const int64_t t = row / p.key_dim;
    const int i = static_cast<int>(row % p.key_dim);
    if (t >= p.cu[p.docs]) return 0;
    return dlog[(t * p.heads + h) * p.key_dim + i] *
           p.RateSlope(static_cast<int>(h), p.Logit(t, static_cast<int>(h), i));
  }
};
template <typename T>
struct BiasTerm {
  Problem<T> p;
  const float* dlog;
  __device__ float operator()(int64_t t, int64_t column) const {
    if (t >= p.cu[p.docs]) return 0;
    if (p.z != nullptr) {
      const int h = static_cast<int>(column / p.key_dim);
      const int i = static_cast<int>(column % p.key_dim);
      return dlog[(t * p.heads + h) * p.key_dim + i] *
             p.Slope(h, p.Logit(t, h, i));
    }
    const int h = static_cast<int>(column);
    float sum = 0;
    for (int i = 0; i < p.key_dim; ++i)
      sum += dlog[(t * p.heads + h) * p.key_dim + i];
    return sum * p.Slope(h, p.Logit(t, h, 0));
  }
};

}  // namespace cadre::linear_attention::generic

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FINISH_CUH_
