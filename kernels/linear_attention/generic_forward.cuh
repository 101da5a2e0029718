#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FORWARD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FORWARD_CUH_

// The forward walk of delta_rule_generic.cu. Device code; private to it.

#include "kernels/linear_attention/generic_state.cuh"

namespace cadre::linear_attention::generic {

template <typename T, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    ForwardKernel(const Problem<T> p, T* o, float* final_state) {
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.z * kTile + threadIdx.x / 32 * kColumns;
  const int h = blockIdx.y, doc = blockIdx.x;
  if (column >= p.value_dim) return;  // no barriers below
  State<kRows> s;
  LoadState(p, p.initial_state, doc, h, column, s);
  for (int64_t t = p.cu[doc]; t < p.cu[doc + 1]; ++t) {
    const Token<T, kRows> token(p, t, h, column);
    float sums[kColumns];
    Decay(token.decay, s);
    WriteToken(token, s, sums);
    ReadState(s, token.q, sums);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane == c && column + c < p.value_dim)
        o[p.ValueRow(t, h) + column + c] = FromFloat<T>(sums[c]);
    }
  }
  if (final_state != nullptr) StoreState(p, s, doc, h, column, final_state);
}

}  // namespace cadre::linear_attention::generic

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_FORWARD_CUH_
