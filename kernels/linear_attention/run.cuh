#ifndef CADRE_KERNELS_LINEAR_ATTENTION_RUN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_RUN_CUH_

// Starts the kernels of KDA (kHeadGate = false) and Gated DeltaNet (true).
// Host side; private to kernels/{kda,gdn}.
//
// Forward, for each group of heads: prepare, scan. Backward: prepare, both
// scans in one grid, finish. One launch before all groups builds the table of
// chunks and zeroes padding rows.

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/tensor.h"
#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/finish.cuh"
#include "kernels/linear_attention/head_finish.cuh"
#include "kernels/linear_attention/head_prepare.cuh"
#include "kernels/linear_attention/prepare.cuh"
#include "kernels/linear_attention/scan.cuh"
#include "kernels/linear_attention/workspace.h"

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

// Block 0 builds the tables, the others zero padding rows.
static __global__ void __launch_bounds__(1024)
    TablesKernel(Problem p, Padding padding) {
  __shared__ int sums[1024];
  if (blockIdx.x == 0) {
    BuildChunks(p, sums);
    return;
  }
  const int end = p.cu_seqlens[p.docs];
  for (int i = 0; i < padding.count; ++i) {
    uint16_t* rows = static_cast<uint16_t*>(padding.data[i]);
    const int64_t pitch = padding.row_bytes[i] / 2;
    for (int64_t at = end * pitch + (blockIdx.x - 1) * 1024 + threadIdx.x;
         at < p.tokens * pitch; at += (gridDim.x - 1) * 1024)
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
};

template <bool kHeadGate, bool kKeepInverse>
__global__ void __launch_bounds__(Shape<kHeadGate>::kPrepare, kHeadGate ? 3 : 2)
    PrepareKernel(__grid_constant__ const Problem p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& shared = *reinterpret_cast<typename Shape<kHeadGate>::Prepare*>(smem);
  if constexpr (kHeadGate) {
    HeadPrepareChunk<kKeepInverse>(p, shared);
  } else {
    PrepareChunk<kKeepInverse>(p, shared);
  }
}

template <bool kHeadGate>
__global__ void __launch_bounds__(Shape<kHeadGate>::kFinish, kHeadGate ? 2 : 1)
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

// Whether `workspace` will do for `shape`, and p's pointers into it.
inline absl::Status UseWorkspace(absl::string_view op, const Tensor& workspace,
                                 const WorkShape& shape, Problem& p,
                                 FinishOutput* finish) {
  const WorkLayout at = LayOutWork(shape);
  if (!workspace.present() || workspace.num_bytes() < at.bytes ||
      reinterpret_cast<uintptr_t>(workspace.raw()) % 256 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": workspace is ", workspace.DebugString(), ", but ",
                     shape.backward ? "a backward" : "a forward", " over ",
                     shape.tokens, " tokens, ", shape.docs, " documents and ",
                     shape.heads, " heads on CUDA works in ", at.bytes,
                     " bytes aligned to 256; ask WorkspaceBytes"));
  }
  char* base = static_cast<char*>(workspace.raw());
  const auto place = [base](auto*& pointer, int64_t offset) {
    pointer =
        offset < 0
            ? nullptr
            : reinterpret_cast<std::decay_t<decltype(pointer)>>(base + offset);
  };
  place(p.chunks, at.chunks);
  place(p.first_chunk, at.first_chunk);
  place(p.w, at.w);
  place(p.qg, at.qg);
  place(p.kg, at.kg);
  place(p.u, at.u);
  place(p.aqk, at.aqk);
  place(p.decay, at.decay);
  place(p.inverse, at.inverse);
  place(p.dx, at.dx);
  place(p.s, at.s);
  place(p.ds, at.ds);
  if (finish != nullptr) {
    place(finish->part_a_log, at.part_a_log);
    place(finish->part_dt_bias, at.part_dt_bias);
    place(finish->part_dq, at.part_dq);
    place(finish->part_dk, at.part_dk);
  }
  p.max_chunks = static_cast<int>(MaxChunks(shape));
  return absl::OkStatus();
}

// One launch for all chunks of the group's heads.
template <bool kHeadGate, bool kKeepInverse>
absl::Status RunPrepare(absl::string_view op, const Exec& exec,
                        const Problem& p) {
  return Launch(op, exec,
                {.grid = static_cast<unsigned>(p.max_chunks) * p.num_heads,
                 .block = Shape<kHeadGate>::kPrepare,
                 .shared_bytes = sizeof(typename Shape<kHeadGate>::Prepare)},
                PrepareKernel<kHeadGate, kKeepInverse>, p);
}
// With a decay of the head, a block works through the value heads of a key
// head.
template <bool kHeadGate>
absl::Status RunFinish(absl::string_view op, const Exec& exec, const Problem& p,
                       const FinishOutput& out) {
  const int heads =
      kHeadGate ? p.num_heads / (p.heads / p.key_heads) : p.num_heads;
  return Launch(op, exec,
                {.grid = static_cast<unsigned>(p.max_chunks) * heads,
                 .block = Shape<kHeadGate>::kFinish,
                 .shared_bytes = sizeof(typename Shape<kHeadGate>::Finish)},
                FinishKernel<kHeadGate>, p, out);
}

template <bool kHeadGate>
absl::Status RunForward(absl::string_view op, const Exec& exec, Problem p,
                        const ScanOutput& out, const Tensor& workspace) {
  const WorkShape shape{p.tokens, p.heads, p.key_heads, p.docs, false};
  if (p.heads == 0) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(UseWorkspace(op, workspace, shape, p, nullptr));
  Padding padding;
  padding.Add(out.o, int64_t{2} * p.heads * kDim);
  CADRE_RETURN_IF_ERROR(
      Launch(op, exec, {.grid = 33, .block = 1024}, TablesKernel, p, padding));
  const int group = static_cast<int>(HeadGroup(shape));
  for (p.first_head = 0; p.first_head < p.heads; p.first_head += group) {
    p.num_heads = std::min(group, p.heads - p.first_head);
    CADRE_RETURN_IF_ERROR((RunPrepare<kHeadGate, false>(op, exec, p)));
    CADRE_RETURN_IF_ERROR(Launch(op, exec,
                                 {.grid = p.docs * p.num_heads * kScanBlocks,
                                  .block = kScanThreads,
                                  .shared_bytes = sizeof(ScanSmem)},
                                 ForwardScanKernel, p, out));
  }
  return absl::OkStatus();
}

template <bool kHeadGate>
absl::Status RunBackward(absl::string_view op, const Exec& exec, Problem p,
                         const ScanOutput& scan, FinishOutput out,
                         float* da_log, float* ddt_bias,
                         const Tensor& workspace) {
  const WorkShape shape{p.tokens, p.heads, p.key_heads, p.docs, true};
  if (p.heads == 0) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(UseWorkspace(op, workspace, shape, p, &out));
  if (da_log == nullptr && ddt_bias == nullptr)
    out.part_a_log = out.part_dt_bias = nullptr;
  Padding padding;
  const int64_t keys = int64_t{2} * p.key_heads * kDim;
  const int64_t values = int64_t{2} * p.heads * kDim;
  padding.Add(out.dq, keys);
  padding.Add(out.dk, keys);
  padding.Add(out.dv, values);
  if (kHeadGate) {
    padding.Add(out.da, int64_t{4} * p.heads);
  } else {
    padding.Add(out.dz, values);
  }
  padding.Add(out.dbeta, int64_t{4} * p.heads);
  CADRE_RETURN_IF_ERROR(
      Launch(op, exec, {.grid = 33, .block = 1024}, TablesKernel, p, padding));
  const int group = static_cast<int>(HeadGroup(shape));
  for (p.first_head = 0; p.first_head < p.heads; p.first_head += group) {
    p.num_heads = std::min(group, p.heads - p.first_head);
    CADRE_RETURN_IF_ERROR((RunPrepare<kHeadGate, true>(op, exec, p)));
    CADRE_RETURN_IF_ERROR(
        Launch(op, exec,
               {.grid = 2 * p.docs * p.num_heads * kScanBlocks,
                .block = kScanThreads,
                .shared_bytes = sizeof(ScanSmem)},
               BackwardScanKernel, p, scan));
    CADRE_RETURN_IF_ERROR(RunFinish<kHeadGate>(op, exec, p, out));
    if (out.part_a_log != nullptr) {
      CADRE_RETURN_IF_ERROR(Launch(
          op, exec, {.grid = static_cast<unsigned>(p.num_heads), .block = 128},
          SumParametersKernel, p, out, kHeadGate ? 1 : kDim, da_log, ddt_bias));
    }
  }
  return absl::OkStatus();
}

// The fast path's limits, as an error.
inline absl::Status CheckDims(absl::string_view op, const Tensor& q,
                              const Tensor& v) {
  if (q.dtype() != DType::kBF16 || q.dim(2) != kDim || v.dim(2) != kDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": q is ", q.DebugString(), " and v ", v.DebugString(),
        ", but the CUDA kernels take bf16 with keys and values of 128"));
  }
  if (q.dim(0) >= (int64_t{1} << 31)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", q.dim(0), " tokens are more than 2^31 - 1"));
  }
  return absl::OkStatus();
}

template <typename T>
T* Pointer(const Tensor& tensor) {
  return tensor.present() ? static_cast<T*>(tensor.raw()) : nullptr;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_RUN_CUH_
