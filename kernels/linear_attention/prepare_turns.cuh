#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_TURNS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_TURNS_CUH_

// How the blocks that prepare chunks share them: as many blocks as fit the
// device take tiles in order, by a ticket, until none is left or until they
// make room for the scan. Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

struct PrepareTurns {
  int tile;    // the block works on
  int next;    // then
  int before;  // its last one; not signalled yet if not negative

  // `tile`, read again wherever this is called rather than kept in a register.
  __device__ __forceinline__ int64_t Tile() const {
    return *static_cast<const volatile int*>(&tile);
  }
};

// Calls prepare(meanwhile) for the block's tiles; `prepare` calls
// meanwhile() once, in its warps 4 to 7, which have nothing else to do then.
template <typename Prepare>
__device__ __forceinline__ void TakeTurns(const Problem& p, PrepareTurns& turns,
                                          Prepare&& prepare) {
  if (threadIdx.x == 0) {
    turns.tile = atomicAdd(p.progress.ticket, 1);
    turns.before = -1;
  }
  __syncthreads();
#pragma unroll 1
  while (turns.tile < p.first_chunk[p.docs] * p.num_heads) {
    prepare([&p, &turns] {
      const int thread = ThreadIndexAgain() - 128;
      if (thread == 0 && turns.before >= 0)
        Signal(p.progress.prepared + turns.before, 1);
      if (thread == 32) {
        // This tile and those given out before it are prepared when half of the
        // blocks have taken another one.
        const int tiles = p.first_chunk[p.docs] * p.num_heads;
        const float ahead = 0.5f * gridDim.x;
        const bool leave = Multiprocessor() < p.progress.leaving &&
                           turns.tile + ahead >= p.progress.leave_share * tiles;
        turns.next = leave ? 0x7fffffff : atomicAdd(p.progress.ticket, 1);
      }
    });
    __syncthreads();  // all of the tile is written
    if (threadIdx.x == 0) {
      turns.before = turns.tile;
      turns.tile = turns.next;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && turns.before >= 0)
    Signal(p.progress.prepared + turns.before, 1);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PREPARE_TURNS_CUH_
