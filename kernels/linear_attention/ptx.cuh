#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PTX_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PTX_CUH_

// The instructions the linear-attention kernels are made of, one function
// each. With kernels/common/hopper.cuh, everything that is not plain C++.
// Private to kernels/{kda,gdn}.
//
// bf16 values travel as the low and high halves of a uint32_t.

#include <cstdint>

#include "kernels/common/hopper.cuh"

namespace cadre::linear_attention {

using hopper::BarrierArrive;
using hopper::BarrierExpect;
using hopper::BarrierInit;
using hopper::BarrierInitFence;
using hopper::BarrierWait;
using hopper::FenceAsyncShared;
using hopper::SharedAddress;
using hopper::WgmmaCommit;
using hopper::WgmmaFence;
using hopper::WgmmaWait;

// --- bf16 and fast math ---

__device__ __forceinline__ uint32_t Pack(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ float Low(uint32_t x) {
  return __uint_as_float(x << 16);
}
__device__ __forceinline__ float High(uint32_t x) {
  return __uint_as_float(x & 0xffff0000u);
}
// Product of two pairs, rounded once.
__device__ __forceinline__ uint32_t MulPair(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t ToTf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float Exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float Log2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// c >= 0 ? a : b, never as a branch.
__device__ __forceinline__ float Select(float a, float b, float c) {
  float r;
  asm("slct.f32.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}
// Of this thread's warp, in a way that the compiler sees to be the same for all
// of its threads.
__device__ __forceinline__ int WarpIndex() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 5), 0);
}
// threadIdx.x, read again wherever this is called: what is derived from it is
// then derived again, too, rather than kept in registers in between.
__device__ __forceinline__ int ThreadIndexAgain() {
  int tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}  // Likewise blockIdx.x.
__device__ __forceinline__ int BlockIndexAgain() {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}

// --- matrices: 8x8 tiles of b16 between shared memory and registers ---

__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4Trans(uint32_t (&r)[4],
                                                 const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}
__device__ __forceinline__ void StoreMatrix4(void* row, const uint32_t* r) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
          SharedAddress(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
__device__ __forceinline__ void StoreMatrix4Trans(void* row,
                                                  const uint32_t* r) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::
          "r"(SharedAddress(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
// d[16,8] += a[16,16] b[16,8]
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t* a,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d[16,8] += a[16,8] b[8,8]
__device__ __forceinline__ void MmaTf32(float (&d)[4], const uint32_t* a,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- products of a warpgroup: d[64,N] += a[64,16] b[16,N], a in registers and
// laid out for each of the four warps as in MmaBf16, b in shared memory ---

// b as rows of N, 64 columns of k each: [N,64] with the 128-byte permutation of
// chunk.cuh.
__device__ __forceinline__ uint64_t RowsOfN(const void* tile) {
  return ((SharedAddress(tile) & 0x3ffffu) >> 4) | (uint64_t{1} << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}
// b as rows of k, 64 columns of N each; the next 64 columns lie `apart` bytes
// further.
__device__ __forceinline__ uint64_t RowsOfK(const void* tile, uint32_t apart) {
  return ((SharedAddress(tile) & 0x3ffffu) >> 4) |
         (static_cast<uint64_t>(apart >> 4) << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}
// A sync of one warpgroup; barrier 0 is __syncthreads.
__device__ __forceinline__ void GroupSync(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}
// Keeps accesses to accumulators on their side of a wait.
template <int kCount>
__device__ __forceinline__ void Pin(float (&d)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile(""
                 : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]),
                   "+f"(d[i][3])::"memory");
  }
}
// kRowsOfK: which of the two descriptors b is. !kAdd: d is overwritten.
template <bool kRowsOfK, bool kAdd = true>
__device__ __forceinline__ void GroupMma(float (&d)[8][4],
                                         const uint32_t (&a)[4], uint64_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %38, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, %37;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "n"(kRowsOfK ? 1 : 0), "n"(kAdd ? 1 : 0));
  // clang-format on
}
template <bool kRowsOfK, bool kAdd = true>
__device__ __forceinline__ void GroupMma(float (&d)[16][4],
                                         const uint32_t (&a)[4], uint64_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %70, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, %69;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "n"(kRowsOfK ? 1 : 0), "n"(kAdd ? 1 : 0));
  // clang-format on
}

// Both operands in shared memory. a: rows of M as RowsOfN, or if kTransA rows
// of k as RowsOfK.
template <bool kTransA, bool kRowsOfK, bool kAdd>
__device__ __forceinline__ void GroupMma(float (&d)[8][4], uint64_t a,
                                         uint64_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %36, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, add, 1, 1, %34, %35;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(a), "l"(b), "n"(kTransA ? 1 : 0), "n"(kRowsOfK ? 1 : 0),
        "n"(kAdd ? 1 : 0));
  // clang-format on
}
template <bool kTransA, bool kRowsOfK, bool kAdd>
__device__ __forceinline__ void GroupMma(float (&d)[16][4], uint64_t a,
                                         uint64_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %68, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63"
      "}, %64, %65, add, 1, 1, %66, %67;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
        "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
        "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
        "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
        "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]),
        "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]),
        "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
        "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
      : "l"(a), "l"(b), "n"(kTransA ? 1 : 0), "n"(kRowsOfK ? 1 : 0),
        "n"(kAdd ? 1 : 0));
  // clang-format on
}

// As above, 32 columns of b.
template <bool kTransA, bool kRowsOfK, bool kAdd>
__device__ __forceinline__ void GroupMma(float (&d)[4][4], uint64_t a,
                                         uint64_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %20, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15"
      "}, %16, %17, add, 1, 1, %18, %19;\n}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]),
        "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
        "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "l"(a), "l"(b), "n"(kTransA ? 1 : 0), "n"(kRowsOfK ? 1 : 0),
        "n"(kAdd ? 1 : 0));
  // clang-format on
}

// --- a cluster of two blocks ---

// This block's place in its cluster.
__device__ __forceinline__ int ClusterRank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Where `mine` lies in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t PeerAddress(const void* mine, int rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(r)
      : "r"(SharedAddress(mine)), "r"(rank));
  return r;
}
// Stores there that count on `barrier`, which lies there, too: nothing else has
// to be waited for, and no fence is needed.
__device__ __forceinline__ void StorePeer(uint32_t to, const float (&x)[4],
                                          uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StorePeer(uint32_t to, float x,
                                          uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 "
      "[%0], %1, [%2];" ::"r"(to),
      "f"(x), "r"(barrier)
      : "memory");
}
// A sync of the cluster in two halves. It hands no data over: a release would
// wait for all that the block has written to global memory.
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// --- copies from global into shared memory ---

// 16 bytes; zeros where !valid.
__device__ __forceinline__ void CopyAsync16(void* smem, const void* global,
                                            bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   SharedAddress(smem)),
               "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void PrefetchL1(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global));
}
// Arrives once for this thread when all its CopyAsync16 so far have landed.
__device__ __forceinline__ void BarrierArriveAfterCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}
// Whole multiples of 16 bytes, counted on `barrier`.
__device__ __forceinline__ void BulkCopy(void* smem, const void* global,
                                         uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(SharedAddress(smem)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

__device__ __forceinline__ float ShuffleXor(float x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PTX_CUH_
