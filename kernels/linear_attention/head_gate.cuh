#ifndef CADRE_KERNELS_LINEAR_ATTENTION_HEAD_GATE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_HEAD_GATE_CUH_

// What a decay for the whole head makes simpler: G is a number a row, and
// exp(G_i - G_j) one a pair of rows, never above 1 where it is used. Device
// code; private to kernels/gdn.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

// Of a chunk's rows; those behind the end have g of the last row and beta 0.
struct HeadRows {
  float g[kChunk];  // G, base 2
  float beta[kChunk];
};

// By the first warp; the caller syncs.
__device__ __forceinline__ void SumHeadDecays(const Problem& p,
                                              const Chunk& chunk, int head,
                                              HeadRows& rows) {
  const int lane = ThreadIndexAgain() & 31;
  const GateMath gate{Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded};
  const float bias = p.dt_bias[head];
  float g[2], b[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane + 32 * half;
    const bool live = row < chunk.length;
    const int64_t from =
        static_cast<int64_t>(chunk.begin + (live ? row : 0)) * p.heads + head;
    g[half] = live ? gate.Decay<false>(p.a[from] + bias) : 0.0f;
    b[half] = live ? Reciprocal(1.0f + Exp2(-kLog2E * p.beta[from])) : 0.0f;
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float other = __shfl_up_sync(0xffffffffu, g[half], step);
      if (lane >= step) g[half] += other;
    }
  }
  g[1] += __shfl_sync(0xffffffffu, g[0], 31);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.g[lane + 32 * half] = g[half];
    rows.beta[lane + 32 * half] = b[half];
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_HEAD_GATE_CUH_
