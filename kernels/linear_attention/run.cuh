#ifndef CADRE_KERNELS_LINEAR_ATTENTION_RUN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_RUN_CUH_

// Starts the kernels of KDA (kHeadGate = false) and Gated DeltaNet (true).
// Host side; private to kernels/{kda,gdn}.
//
// Forward, for each group of heads: prepare, and beside it scan (progress.cuh).
// Backward: prepare, both scans in one grid, finish. Where documents are parted
// (segments.cuh), two launches before the scans find what each segment starts
// from. One launch before all groups builds the tables and zeroes padding rows.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/tensor.h"
#include "kernels/linear_attention/kernels.cuh"
#include "kernels/linear_attention/schedule.h"
#include "kernels/linear_attention/workspace.h"

namespace cadre::linear_attention {

// Each document is one segment, whatever the workspace has room for.
inline void KeepWhole(Problem& p, const WorkShape& shape) {
  p.segment_chunks = std::numeric_limits<int>::max();
  p.max_segments = static_cast<int>(shape.docs);
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
  const int64_t tiles = MaxChunks(shape) * HeadGroup(shape);
  place(p.segments, at.segments);
  place(p.first_segment, at.first_segment);
  place(p.ends, at.ends);
  place(p.d_ends, at.d_ends);
  place(p.carry_t, at.carry_t);
  place(p.carry, at.carry);
  place(p.progress.prepared, at.progress);
  p.progress.ticket = p.progress.prepared + tiles;
  if (finish != nullptr) {
    place(finish->part_a_log, at.part_a_log);
    place(finish->part_dt_bias, at.part_dt_bias);
    place(finish->part_dq, at.part_dq);
    place(finish->part_dk, at.part_dk);
  }
  p.max_chunks = static_cast<int>(MaxChunks(shape));
  KeepWhole(p, shape);
  if (const Segments segments = PlanSegments(shape); segments.chunks > 0) {
    p.segment_chunks = static_cast<int>(segments.chunks);
    p.max_segments = static_cast<int>(segments.max);
  }
  return absl::OkStatus();
}

// Of the current device.
inline int Multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// As Launch, but the kernel may start when all blocks of the one before it run
// (progress.cuh).
template <typename... Params, typename... Args>
absl::Status LaunchBeside(absl::string_view op, const Exec& exec,
                          const LaunchShape& shape, void (*kernel)(Params...),
                          Args&&... args) {
  if (shape.grid.x == 0) return absl::OkStatus();
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared_bytes));
  if (error == cudaSuccess) {
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = StreamOf(exec);
    config.attrs = &overlap;
    config.numAttrs = 1;
    error = cudaLaunchKernelEx(
        &config, kernel, static_cast<Params>(std::forward<Args>(args))...);
  }
  if (error != cudaSuccess) cudaGetLastError();  // not sticky
  return CudaStatus(error, absl::StrCat(op, ": launch"));
}

// The tables, zeroed padding and the words of progress.
inline absl::Status RunTables(absl::string_view op, const Exec& exec,
                              const Problem& p, const WorkShape& shape,
                              const Padding& padding) {
  return Launch(op, exec, {.grid = 33, .block = kTableThreads}, TablesKernel, p,
                padding, p.progress.prepared, ProgressWords(shape));
}

// What each segment starts from, where documents are parted.
inline absl::Status RunSegments(absl::string_view op, const Exec& exec,
                                const Problem& p, bool backward) {
  if (p.ends == nullptr) return absl::OkStatus();
  const auto blocks = [](int64_t count) {
    return static_cast<unsigned>(count);
  };
  CADRE_RETURN_IF_ERROR(
      Launch(op, exec,
             {.grid = blocks(int64_t{backward ? 3 : 2} * p.max_segments *
                             p.num_heads * kScanBlocks),
              .block = kScanThreads,
              .shared_bytes = sizeof(ScanSmem)},
             WalkSegmentsKernel, p));
  return Launch(op, exec,
                {.grid = blocks(int64_t{backward ? 2 : 1} * p.docs *
                                p.num_heads * kJoinBlocks),
                 .block = kJoinThreads,
                 .shared_bytes = sizeof(JoinSmem)},
                JoinSegmentsKernel, p);
}

// All chunks of the group's heads, for the backward.
template <bool kHeadGate>
absl::Status PrepareBackward(absl::string_view op, const Exec& exec,
                             const Problem& p) {
  return Launch(op, exec,
                {.grid = static_cast<unsigned>(p.max_chunks) * p.num_heads,
                 .block = Shape<kHeadGate>::kPrepare,
                 .shared_bytes = sizeof(typename Shape<kHeadGate>::Prepare)},
                PrepareKernel<kHeadGate, true>, p);
}

// All chunks of the group's heads, and the scan beside it, or behind it where
// documents are parted.
template <bool kHeadGate>
absl::Status PrepareAndScan(absl::string_view op, const Exec& exec, Problem& p,
                            const ScanOutput& out) {
  const int device = Multiprocessors();
  const int64_t scan_blocks =
      int64_t{p.max_segments} * p.num_heads * kScanBlocks;
  const bool parted = p.ends != nullptr;
  const Overlap overlap =
      parted ? Overlap{0, 1.0f}
             : PlanOverlap(scan_blocks, device,
                           kHeadGate ? kHeadPrepareTileCost : kPrepareTileCost);
  p.progress.leaving = overlap.leaving;
  p.progress.leave_share = overlap.leave_share;
  const int64_t tiles = int64_t{p.max_chunks} * p.num_heads;
  const int64_t fit = int64_t{device} * Shape<kHeadGate>::kPrepareBlocks;
  CADRE_RETURN_IF_ERROR(
      Launch(op, exec,
             {.grid = static_cast<unsigned>(std::min(tiles, fit)),
              .block = Shape<kHeadGate>::kPrepare,
              .shared_bytes = sizeof(typename Shape<kHeadGate>::Prepare)},
             PrepareKernel<kHeadGate, false>, p));
  const LaunchShape scan{.grid = static_cast<unsigned>(scan_blocks),
                         .block = kScanThreads,
                         .shared_bytes = sizeof(ScanSmem)};
  if (!parted) return LaunchBeside(op, exec, scan, ForwardScanKernel, p, out);
  CADRE_RETURN_IF_ERROR(RunSegments(op, exec, p, false));
  return Launch(op, exec, scan, ForwardScanKernel, p, out);
}

// With a decay of the head, a block works through the value heads of a key
// head; otherwise a cluster of blocks has a tile.
template <bool kHeadGate>
absl::Status RunFinish(absl::string_view op, const Exec& exec, const Problem& p,
                       const FinishOutput& out) {
  const int blocks = kHeadGate ? p.num_heads / (p.heads / p.key_heads)
                               : p.num_heads * Shape<false>::kFinishCluster;
  return Launch(op, exec,
                {.grid = static_cast<unsigned>(p.max_chunks) * blocks,
                 .block = Shape<kHeadGate>::kFinish,
                 .shared_bytes = sizeof(typename Shape<kHeadGate>::Finish)},
                FinishKernel<kHeadGate>, p, out);
}

// Calls run() for each group of heads, set in p.
template <typename Run>
absl::Status ForGroups(const WorkShape& shape, Problem& p, Run&& run) {
  const int group = static_cast<int>(HeadGroup(shape));
  int* const tickets = p.progress.ticket;
  for (p.first_head = 0; p.first_head < p.heads; p.first_head += group) {
    p.num_heads = std::min(group, p.heads - p.first_head);
    p.progress.ticket = tickets + p.progress.turn++;
    CADRE_RETURN_IF_ERROR(run());
  }
  return absl::OkStatus();
}

template <bool kHeadGate>
absl::Status RunForward(absl::string_view op, const Exec& exec, Problem p,
                        const ScanOutput& out, const Tensor& workspace) {
  const WorkShape shape{p.tokens, p.heads, p.key_heads, p.docs, false};
  if (p.heads == 0) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(UseWorkspace(op, workspace, shape, p, nullptr));
  Padding padding;
  padding.Add(out.o, int64_t{2} * p.heads * kDim);
  CADRE_RETURN_IF_ERROR(RunTables(op, exec, p, shape, padding));
  return ForGroups(shape, p,
                   [&] { return PrepareAndScan<kHeadGate>(op, exec, p, out); });
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
  CADRE_RETURN_IF_ERROR(RunTables(op, exec, p, shape, padding));
  return ForGroups(shape, p, [&]() -> absl::Status {
    CADRE_RETURN_IF_ERROR(PrepareBackward<kHeadGate>(op, exec, p));
    CADRE_RETURN_IF_ERROR(RunSegments(op, exec, p, true));
    CADRE_RETURN_IF_ERROR(
        Launch(op, exec,
               {.grid = 2 * p.max_segments * p.num_heads * kScanBlocks,
                .block = kScanThreads,
                .shared_bytes = sizeof(ScanSmem)},
               BackwardScanKernel, p, scan));
    CADRE_RETURN_IF_ERROR(RunFinish<kHeadGate>(op, exec, p, out));
    if (out.part_a_log == nullptr) return absl::OkStatus();
    return Launch(
        op, exec, {.grid = static_cast<unsigned>(p.num_heads), .block = 128},
        SumParametersKernel, p, out, kHeadGate ? 1 : kDim, da_log, ddt_bias);
  });
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
