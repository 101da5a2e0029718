#ifndef CADRE_KERNELS_ATTENTION_HOPPER_CUH_
#define CADRE_KERNELS_ATTENTION_HOPPER_CUH_

// Hopper's instructions as the attention kernels use them, beyond those of
// kernels/common/hopper.cuh: products of a warpgroup. Device code for sm_90a,
// private to this folder.
//
// A tile in shared memory is cut into chunks of 64 columns: rows of 128 bytes
// with TMA's 128-byte swizzle, a chunk of R rows taking 128 R bytes, R a
// multiple of 8 and the chunk aligned to 1024 bytes.

#include <cstdint>

#include "kernels/common/hopper.cuh"

namespace cadre::attention_device {

using hopper::BarrierArrive;
using hopper::BarrierExpect;
using hopper::BarrierInit;
using hopper::BarrierInitFence;
using hopper::BarrierWait;
using hopper::FewerRegisters;
using hopper::MoreRegisters;
using hopper::SharedAddress;
using hopper::TmaLoad;
using hopper::WgmmaCommit;
using hopper::WgmmaFence;
using hopper::WgmmaWait;

// The two halves of a barrier by number: Sync waits for `threads` arrivals, its
// own included.
__device__ __forceinline__ void NamedSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// An operand of a product. The sum runs along the rows of the tile, or across
// them: then `chunk` is the bytes from one chunk of columns to the next.
__device__ __forceinline__ uint64_t Along(const void* tile) {
  return ((SharedAddress(tile) & 0x3FFFF) >> 4) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
__device__ __forceinline__ uint64_t Across(const void* tile, int chunk) {
  return Along(tile) | (static_cast<uint64_t>(chunk >> 4) << 16);
}

// Keeps the compiler's accesses to registers on their side of a wait.
template <int kCount>
__device__ __forceinline__ void Pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d [64,N] (+)= a [64,16] b [16,N] of one warpgroup; d is overwritten where
// `add` is 0. Element 4j + e of d in lane l of warp w: row 16w + l/4 + 8(e/2),
// column 8j + 2(l%4) + e%2. As an operand in registers, word i of a is elements
// 2i and 2i + 1 of two neighbouring j.
//   WgmmaShared<N>(d, a, b, add)     a and b with the sum along their rows
//   WgmmaRegisters<N>(d, a, b)       b with the sum across its rows
template <int kN>
struct WgmmaOf;

// clang-format off
#define CADRE_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CADRE_R1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CADRE_R2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CADRE_R3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CADRE_R4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define CADRE_R5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define CADRE_R6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define CADRE_R7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CADRE_R2H "%32, %33, %34, %35, %36, %37, %38, %39"
#define CADRE_D8(i) "+f"(d[i + 0]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define CADRE_D16(i) CADRE_D8(i), CADRE_D8(i + 8)
#define CADRE_WGMMA(N, REGS, D, A, B, C, E, F)                                \
  template <>                                                                 \
  struct WgmmaOf<N> {                                                         \
    static __device__ __forceinline__ void Shared(float (&d)[N / 2],          \
                                                  uint64_t a, uint64_t b,     \
                                                  int add) {                  \
      asm volatile(                                                           \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %" C ", 0;\n"                     \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {"        \
          REGS "}, %" A ", %" B ", p, 1, 1, 0, 0;\n}\n"                       \
          : D : "l"(a), "l"(b), "r"(add));                                    \
    }                                                                         \
    static __device__ __forceinline__ void Registers(float (&d)[N / 2],       \
                                                     const uint32_t* a,       \
                                                     uint64_t b) {            \
      asm volatile(                                                           \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {"        \
          REGS "}, {%" A ", %" B ", %" C ", %" E "}, %" F ", 1, 1, 1, 1;\n"   \
          : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));          \
    }                                                                         \
  };
#define CADRE_LIST(...) __VA_ARGS__
CADRE_WGMMA(64, CADRE_R0 ", " CADRE_R1,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16)), "32", "33", "34", "35", "36")
CADRE_WGMMA(80, CADRE_R0 ", " CADRE_R1 ", " CADRE_R2H,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16), CADRE_D8(32)), "40", "41", "42", "43", "44")
CADRE_WGMMA(96, CADRE_R0 ", " CADRE_R1 ", " CADRE_R2,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16), CADRE_D16(32)), "48", "49", "50", "51", "52")
CADRE_WGMMA(128, CADRE_R0 ", " CADRE_R1 ", " CADRE_R2 ", " CADRE_R3,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16), CADRE_D16(32), CADRE_D16(48)), "64", "65", "66", "67", "68")
CADRE_WGMMA(192, CADRE_R0 ", " CADRE_R1 ", " CADRE_R2 ", " CADRE_R3 ", " CADRE_R4 ", " CADRE_R5,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16), CADRE_D16(32), CADRE_D16(48), CADRE_D16(64), CADRE_D16(80)), "96", "97", "98", "99", "100")
CADRE_WGMMA(256, CADRE_R0 ", " CADRE_R1 ", " CADRE_R2 ", " CADRE_R3 ", " CADRE_R4 ", " CADRE_R5 ", " CADRE_R6 ", " CADRE_R7,
            CADRE_LIST(CADRE_D16(0), CADRE_D16(16), CADRE_D16(32), CADRE_D16(48), CADRE_D16(64), CADRE_D16(80), CADRE_D16(96), CADRE_D16(112)), "128", "129", "130", "131", "132")
#undef CADRE_WGMMA
#undef CADRE_LIST
#undef CADRE_D16
#undef CADRE_D8
#undef CADRE_R2H
#undef CADRE_R0
#undef CADRE_R1
#undef CADRE_R2
#undef CADRE_R3
#undef CADRE_R4
#undef CADRE_R5
#undef CADRE_R6
#undef CADRE_R7
// clang-format on

// d (+)= the sum over kChunks chunks of a[64 rows] b[kN rows]^T. Both tiles
// have the sum along their rows; chunks lie `a_chunk` and `b_chunk` apart.
template <int kN, int kChunks>
__device__ __forceinline__ void MultiplyShared(float (&d)[kN / 2],
                                               const char* a, int a_chunk,
                                               const char* b, int b_chunk) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaOf<kN>::Shared(d, Along(a + chunk * a_chunk + step * 32),
                          Along(b + chunk * b_chunk + step * 32),
                          chunk + step > 0);
    }
  }
}

// d += a b, a [64, kDepth] in registers as words of bf16 pairs, b a tile of
// kDepth rows and kN columns.
template <int kN, int kDepth>
__device__ __forceinline__ void MultiplyRegisters(
    float (&d)[kN / 2], const uint32_t (&a)[kDepth / 4], const char* b) {
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    WgmmaOf<kN>::Registers(d, a + 4 * step,
                           Across(b + step * 2048, kDepth * 128));
  }
}

__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float LowHalf(uint32_t x) {
  return __uint_as_float(x << 16);
}
__device__ __forceinline__ float HighHalf(uint32_t x) {
  return __uint_as_float(x & 0xFFFF0000u);
}
// 2^x; subnormal results become 0.
__device__ __forceinline__ float Exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

}  // namespace cadre::attention_device

#endif  // CADRE_KERNELS_ATTENTION_HOPPER_CUH_
