#ifndef CADRE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_
#define CADRE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_

// Private to the dense bf16 kernels for Hopper (attention_wgmma_*.cu): when
// they apply, and how TMA sees their tensors.
//
// All of them are built alike. One warp of a block loads tiles (TMA, a ring of
// stages with a full and an empty mbarrier each); two warpgroups compute, each
// for 64 rows of its own (queries or keys), whose sums stay in its registers.
// Scores leave the products in the layout in which the next product takes an
// operand from registers, so that probabilities never touch shared memory.
//
// The tiles that are walked over are laid from the end of their range, so that
// none reaches behind the last real token: what lies in padding may be anything
// and must not meet a sum, not even times 0. In front of the range the tiles
// reach into tokens of other documents, which are masked, or in front of the
// tensor, where TMA fills in zeros.

#include <cuda.h>

#include "absl/status/statusor.h"
#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/hopper.cuh"

namespace cadre::attention_device {

using Bf16 = __nv_bfloat16;

constexpr float kLog2OfE = 1.4426950408889634f;

// Warps 0 to 3 hold the loading one, 4 to 7 and 8 to 11 compute.
constexpr int kWgmmaThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kComputeWarps = kComputeThreads / 32;
constexpr int kLoadRegisters = 24, kComputeRegisters = 240;

// The tensor [tokens, heads, dim] in boxes of 64 columns, one head and `rows`
// tokens.
absl::StatusOr<CUtensorMap> HeadMap(const Bf16* data, int64_t tokens, int heads,
                                    int dim, int rows);

// What all of them ask for: dense, 16-byte rows, tokens that an int counts, and
// a current device of compute capability 9.0.
bool WgmmaTakes(const Params<Bf16>& p);
// Likewise, and a shape that is compiled.
bool ForwardWgmmaTakes(const Params<Bf16>& p);
absl::Status ForwardWgmma(const Exec& exec, const Params<Bf16>& p);
bool BackwardWgmmaTakes(const Params<Bf16>& p);
absl::Status BackwardWgmma(const Exec& exec, const Params<Bf16>& p);

// The two halves of the backward, once Delta is parked.
absl::Status KeysWgmma(const Exec& exec, const Params<Bf16>& p);
absl::Status QueriesWgmma(const Exec& exec, const Params<Bf16>& p);

// A position in a ring of kStages stages.
template <int kStages>
struct Ring {
  int stage = 0;
  int phase = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A warp is done with a stage: one arrival for all of its lanes.
__device__ __forceinline__ void Release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) BarrierArrive(empty);
}

// Dynamic shared memory from the first multiple of 1024 bytes on; kernels ask
// for that much more.
constexpr int kAlignment = 1024;
__device__ __forceinline__ char* Align(char* shared) {
  return shared +
         (kAlignment - SharedAddress(shared) % kAlignment) % kAlignment;
}

}  // namespace cadre::attention_device

#endif  // CADRE_KERNELS_ATTENTION_ATTENTION_WGMMA_CUH_
