#ifndef CADRE_KERNELS_COMMON_HOPPER_CUH_
#define CADRE_KERNELS_COMMON_HOPPER_CUH_

// Hopper's asynchronous instructions that kernels of several folders use:
// mbarriers, tiled TMA loads, and what surrounds products of a warpgroup.
// Device code for sm_90a. The products themselves differ in shape from folder
// to folder and stay there.

#include <cuda.h>

#include <cstdint>

namespace cadre::hopper {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void BarrierInit(uint64_t* bar, int arrivals) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(bar)),
      "r"(arrivals)
      : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* bar) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(bar))
      : "memory");
}
// Arrives, and lets the phase wait for `bytes` of copies, too.
__device__ __forceinline__ void BarrierExpect(uint64_t* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(bar)),
               "r"(bytes)
               : "memory");
}
// Until the phase with this parity is over. Where one lane of a warp has yet to
// do something for that, the others must not be here before: their spinning can
// keep it from going on.
__device__ __forceinline__ void BarrierWait(uint64_t* bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\n"
      "bra again;\n"
      "out:\n"
      "}\n" ::"r"(SharedAddress(bar)),
      "r"(parity)
      : "memory");
}

// A box of a tensor map from these coordinates on, counted on `bar`. What lies
// outside the tensor becomes zero.
__device__ __forceinline__ void TmaLoad(void* to, const CUtensorMap* map,
                                        uint64_t* bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(bar)), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void TmaLoad(void* to, const CUtensorMap* map,
                                        uint64_t* bar, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx"
      "::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(bar)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Makes this thread's ordinary accesses to shared memory come before what the
// tensor cores and the copy engine do there after the next sync.
__device__ __forceinline__ void FenceAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace cadre::hopper

#endif  // CADRE_KERNELS_COMMON_HOPPER_CUH_
