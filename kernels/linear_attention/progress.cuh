#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PROGRESS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PROGRESS_CUH_

// How the two kernels of a forward run side by side. The scan keeps few
// multiprocessors busy, so it starts before all chunks are prepared and waits
// for single tiles.
//
// It is started by programmatic dependent launch, which the preparing kernel
// allows as soon as all its blocks run. The preparing kernel never waits for
// the scan, so nothing hangs where launches are not overlapped. The scan's last
// block waits for the kernel before, so that its end means the end of both.
// Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/ptx.cuh"

namespace cadre::linear_attention {

// All words start a call as zeros and only grow; `turn` counts the groups of
// heads from 1.
struct Progress {
  int* prepared;  // a tile: `turn` once its chunk is prepared
  int* ticket;    // of this turn: tiles given out to the preparing blocks
  int turn;
  // Preparing blocks on multiprocessors below `leaving` make room for the scan
  // once about this share of all tiles is prepared.
  int leaving;
  float leave_share;
};

__device__ __forceinline__ void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// By one thread of the last block, before it ends.
__device__ __forceinline__ void AwaitKernelBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ int Multiprocessor() {
  int id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

// What this thread has seen written (by a barrier, too) comes before the count.
__device__ __forceinline__ void Signal(int* word, int add) {
  asm volatile(
      "fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(
          word),
      "r"(add)
      : "memory");
}
// Returns when `word` is `value` or more. What was written before that count
// is then visible to this thread, and to the copies it starts.
__device__ __forceinline__ void Await(const int* word, int value) {
  while (true) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(seen)
                 : "l"(word)
                 : "memory");
    if (seen >= value) break;
    __nanosleep(64);
  }
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PROGRESS_CUH_
