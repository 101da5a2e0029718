#ifndef CADRE_KERNELS_LINEAR_ATTENTION_KERNELS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_KERNELS_CUH_

// The kernels of KDA (kHeadGate = false) and Gated DeltaNet (true): their
// shapes, and what each block does. Private to kernels/{kda,gdn}.

#include <type_traits>

#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/finish.cuh"
#include "kernels/linear_attention/head_finish.cuh"
#include "kernels/linear_attention/head_prepare.cuh"
#include "kernels/linear_attention/prepare.cuh"
#include "kernels/linear_attention/prepare_turns.cuh"
#include "kernels/linear_attention/scan.cuh"
#include "kernels/linear_attention/segments.cuh"
#include "kernels/linear_attention/tables.cuh"

namespace cadre::linear_attention {

// Outputs whose padding rows have to become zero: `row` elements of 4 or 2
// bytes a token.
struct Padding {
  static constexpr int kMax = 5;
  void* data[kMax];
  int64_t row_bytes[kMax];
  int count = 0;
  void Add(void* p, int64_t bytes) {
    data[count] = p;
    row_bytes[count++] = bytes;
  }
};

// Block 0 builds the tables, the others zero padding rows and the `words` that
// progress is counted on.
static __global__ void __launch_bounds__(kTableThreads)
    TablesKernel(Problem p, Padding padding, int* words, int64_t num_words) {
  __shared__ int sums[kTableThreads];
  if (blockIdx.x == 0) {
    BuildTables(p, sums);
    return;
  }
  const int64_t first = (blockIdx.x - 1) * kTableThreads + threadIdx.x;
  const int64_t step = (gridDim.x - 1) * kTableThreads;
  for (int64_t at = first; at < num_words; at += step) words[at] = 0;
  const int end = p.cu_seqlens[p.docs];
  for (int i = 0; i < padding.count; ++i) {
    uint16_t* rows = static_cast<uint16_t*>(padding.data[i]);
    const int64_t pitch = padding.row_bytes[i] / 2;
    for (int64_t at = end * pitch + first; at < p.tokens * pitch; at += step)
      rows[at] = 0;
  }
}

// Threads, blocks a multiprocessor and shared memory of the kernels of KDA and
// of Gated DeltaNet.
template <bool kHeadGate>
struct Shape {
  using Prepare = std::conditional_t<kHeadGate, HeadPrepareSmem, PrepareSmem>;
  using Finish = std::conditional_t<kHeadGate, HeadFinishSmem, FinishSmem>;
  static constexpr int kPrepare =
      kHeadGate ? kHeadPrepareThreads : kPrepareThreads;
  static constexpr int kFinish =
      kHeadGate ? kHeadFinishThreads : kFinishThreads;
  static constexpr int kPrepareBlocks = kHeadGate ? 3 : 2;
  static constexpr int kFinishBlocks = 2;
  // Blocks of a cluster, which has a tile or more.
  static constexpr int kFinishCluster = kHeadGate ? 1 : kDim / kFinishDim;
};

// Forward: as many blocks as fit the device, or fewer. Backward: one a tile.
template <bool kHeadGate, bool kKeepInverse>
__global__ void __launch_bounds__(Shape<kHeadGate>::kPrepare,
                                  Shape<kHeadGate>::kPrepareBlocks)
    PrepareKernel(__grid_constant__ const Problem p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  __shared__ PrepareTurns turns;
  auto& shared = *reinterpret_cast<typename Shape<kHeadGate>::Prepare*>(smem);
  const auto prepare = [&p, &shared](auto&& meanwhile) {
    if constexpr (kHeadGate) {
      HeadPrepareChunk<kKeepInverse>(p, shared, turns, meanwhile);
    } else {
      PrepareChunk<kKeepInverse>(p, shared, turns, meanwhile);
    }
  };
  if constexpr (kKeepInverse) {
    if (blockIdx.x >= p.first_chunk[p.docs] * p.num_heads) return;
    if (threadIdx.x == 0) turns.tile = blockIdx.x;
    __syncthreads();
    prepare([] {});
  } else {
    AllowNextKernel();
    TakeTurns(p, turns, prepare);
  }
}

template <bool kHeadGate>
__global__ void __cluster_dims__(Shape<kHeadGate>::kFinishCluster)
    __launch_bounds__(Shape<kHeadGate>::kFinish,
                      Shape<kHeadGate>::kFinishBlocks)
        FinishKernel(__grid_constant__ const Problem p,
                     __grid_constant__ const FinishOutput out) {
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<typename Shape<kHeadGate>::Finish*>(smem);
  if constexpr (kHeadGate) {
    HeadFinishChunk(p, out, shared);
  } else {
    FinishChunk(p, out, shared);
  }
}

inline constexpr unsigned kScanBlocks = kDim / kScanColumns;

static __global__ void __launch_bounds__(kScanThreads, 1)
    ForwardScanKernel(__grid_constant__ const Problem p, ScanOutput out) {
  extern __shared__ __align__(1024) uint8_t smem[];
  RunScan<Scan::kOutput>(p, out, *reinterpret_cast<ScanSmem*>(smem),
                         blockIdx.x);
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) AwaitKernelBefore();
}

// Where segments end; twice the blocks forward, three times backward.
static __global__ void __launch_bounds__(kScanThreads, 1)
    WalkSegmentsKernel(__grid_constant__ const Problem p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  WalkSegment(p, *reinterpret_cast<ScanSmem*>(smem));
}

static __global__ void __launch_bounds__(kJoinThreads)
    JoinSegmentsKernel(__grid_constant__ const Problem p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  JoinSegments(p, *reinterpret_cast<JoinSmem*>(smem));
}

// Two halves: states, and gradients of states.
static __global__ void __launch_bounds__(kScanThreads, 1)
    BackwardScanKernel(__grid_constant__ const Problem p, ScanOutput out) {
  extern __shared__ __align__(1024) uint8_t smem[];
  ScanSmem& shared = *reinterpret_cast<ScanSmem*>(smem);
  const int half = gridDim.x / 2;
  if (blockIdx.x < half) {
    RunScan<Scan::kReverse>(p, out, shared, blockIdx.x);
  } else {
    RunScan<Scan::kStates>(p, out, shared, blockIdx.x - half);
  }
}

// Adds the chunks' partial sums, in order. One block of 128 threads a head.
static __global__ void __launch_bounds__(128)
    SumParametersKernel(__grid_constant__ const Problem p,
                        __grid_constant__ const FinishOutput out, int biases,
                        float* da_log, float* ddt_bias) {
  const int chunks = p.first_chunk[p.docs];
  const int head = p.first_head + blockIdx.x, tid = threadIdx.x;
  if (da_log != nullptr && tid == 0) {
    float sum = 0;
#pragma unroll 8
    for (int c = 0; c < chunks; ++c) sum += out.part_a_log[p.tile(c, head)];
    da_log[head] += sum;
  }
  if (ddt_bias != nullptr && tid < biases) {
    float sum = 0;
#pragma unroll 8
    for (int c = 0; c < chunks; ++c)
      sum += out.part_dt_bias[p.tile(c, head) * biases + tid];
    ddt_bias[head * biases + tid] += sum;
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_KERNELS_CUH_
