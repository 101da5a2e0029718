#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_

// What the last parts of both backwards share: sums over lanes, and what
// surrounds the products of a warpgroup. Device code; private to
// kernels/{kda,gdn}.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

// Sum over the four lanes of a quad.
__device__ __forceinline__ float QuadSum(float x) {
  x += ShuffleXor(x, 1);
  return x + ShuffleXor(x, 2);
}
// Sum over lanes of equal quad position: a column of an accumulator.
__device__ __forceinline__ float GroupSum(float x) {
  x += ShuffleXor(x, 4);
  x += ShuffleXor(x, 8);
  return x + ShuffleXor(x, 16);
}

// The same address, and no reason to keep descriptors made of it: hoisted out
// of the loop over heads they would fill the registers.
__device__ __forceinline__ const uint16_t* Again(const uint16_t* tile) {
  asm volatile("" : "+l"(tile));
  return tile;
}

// Step k along the 128 columns of a wide tile whose rows are rows of the
// operand.
__device__ __forceinline__ uint64_t WideStep(const uint16_t* tile, int k) {
  return RowsOfN(tile + (k >> 2) * (kChunk * 64) + (k & 3) * 16);
}
template <int kCount>
__device__ __forceinline__ void FinishProduct(float (&d)[kCount][4]) {
  WgmmaCommit();
  WgmmaWait<0>();
  Pin(d);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_PRODUCTS_CUH_
