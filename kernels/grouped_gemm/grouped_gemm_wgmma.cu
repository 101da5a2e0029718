// One persistent launch for all groups. A block takes 128 x 256 tiles of the
// result; its first warpgroup only loads (TMA, four stages of 64 deep), the two
// others multiply 64 rows each. Every block counts the tiles of all groups for
// itself from the offsets, so that sizes stay on the device.
//
//   kNT  rows of x    times  w[g]^T   w tile: sum along its rows
//   kNN  rows of y    times  w[g]     w tile: sum across its rows
//   kTN  y^T of rows  times  x        both across; the sum is the group's rows
//
// A tile's last rows may belong to the next group: they are computed and not
// stored (kNT, kNN), or zeroed in shared memory before they enter a sum (kTN),
// where even 0 times garbage must not appear. A warpgroup without a row of its
// own skips its products, so that a group costs its rows rounded up to 64.
#include <cuda.h>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch.h"
#include "kernels/grouped_gemm/wgmma.cuh"

namespace cadre {
namespace {

using Mode = GroupedGemmMode;

constexpr int kRows = 128, kColumns = 256, kDepth = 64, kStages = 4;
constexpr int kThreads = 384, kConsumers = 256;
constexpr int kChunk = 64 * kDepth * 2;  // bytes of a 64 x 64 piece
constexpr int kBytesA = kRows * kDepth * 2, kBytesB = kColumns * kDepth * 2;
constexpr int kStageBytes = kBytesA + kBytesB;
constexpr int kMaxGroups = 4096;

struct Problem {
  const int32_t* offsets;
  int groups;
  int n, k;  // of w
  float alpha;
  bool accumulate;
};

struct Tile {
  int group;
  int row, column;  // of the result, inside the group for rows
  int begin, end;   // the group's rows
};

[[maybe_unused]] __device__ __forceinline__ int CeilDiv(int a, int b) {
  return (a + b - 1) / b;
}

template <Mode kMode>
__device__ __forceinline__ int RowTiles(const Problem& p, int rows) {
  return CeilDiv(kMode == Mode::kTN ? p.n : rows, kRows);
}
template <Mode kMode>
__device__ __forceinline__ int ColumnTiles(const Problem& p) {
  return CeilDiv(kMode == Mode::kNT ? p.n : p.k, kColumns);
}

// first[g] = tiles before group g. One warp.
template <Mode kMode>
__device__ void CountTiles(const Problem& p, int* first) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int g0 = 0; g0 < p.groups; g0 += 32) {
    const int g = g0 + lane;
    int tiles = 0;
    if (g < p.groups) {
      tiles = RowTiles<kMode>(p, p.offsets[g + 1] - p.offsets[g]) *
              ColumnTiles<kMode>(p);
    }
    int sum = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFF, sum, step);
      if (lane >= step) sum += other;
    }
    if (g < p.groups) first[g] = before + sum - tiles;
    before += __shfl_sync(0xFFFFFFFF, sum, 31);
  }
  if (lane == 0) first[p.groups] = before;
}

// Tiles of one group run down its rows first, so that a column of its weight is
// read from memory once.
template <Mode kMode>
__device__ __forceinline__ Tile TileAt(const Problem& p, const int* first,
                                       int index) {
  int low = 0, high = p.groups;  // first[low] <= index < first[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first[middle] <= index ? low : high) = middle;
  }
  Tile t;
  t.group = low;
  t.begin = p.offsets[low];
  t.end = p.offsets[low + 1];
  const int rows = RowTiles<kMode>(p, t.end - t.begin);
  const int local = index - first[low];
  t.row = local % rows * kRows;
  t.column = local / rows * kColumns;
  return t;
}

template <Mode kMode>
__device__ __forceinline__ int Depth(const Problem& p, const Tile& t) {
  if (kMode == Mode::kTN) return t.end - t.begin;
  return kMode == Mode::kNT ? p.k : p.n;
}

template <Mode kMode>
__device__ void Load(const CUtensorMap* a, const CUtensorMap* b, const Tile& t,
                     int depth, char* stage, uint64_t* full) {
  using hopper::TmaLoad;
  char* const to_b = stage + kBytesA;
  if constexpr (kMode == Mode::kTN) {
    const int row = t.begin + depth;
    for (int i = 0; i < kRows / 64; ++i) {
      TmaLoad(stage + i * kChunk, a, full, t.row + 64 * i, row);
    }
    for (int i = 0; i < kColumns / 64; ++i) {
      TmaLoad(to_b + i * kChunk, b, full, t.column + 64 * i, row);
    }
  } else if constexpr (kMode == Mode::kNT) {
    TmaLoad(stage, a, full, depth, t.begin + t.row);
    TmaLoad(to_b, b, full, depth, t.column, t.group);
  } else {
    TmaLoad(stage, a, full, depth, t.begin + t.row);
    for (int i = 0; i < kColumns / 64; ++i) {
      TmaLoad(to_b + i * kChunk, b, full, t.column + 64 * i, depth, t.group);
    }
  }
}

// Rows from `valid` on of every 64 x 64 piece become zero. All consumers.
[[maybe_unused]] __device__ void ZeroRows(char* stage, int valid) {
  const int thread = threadIdx.x - 128;
  const int words = (kDepth - valid) * 8;  // of 16 bytes, in one piece
  for (int i = thread; i < words * (kStageBytes / kChunk); i += kConsumers) {
    const int piece = i / words, word = valid * 8 + i % words;
    *reinterpret_cast<uint4*>(stage + piece * kChunk + word * 16) =
        make_uint4(0, 0, 0, 0);
  }
  hopper::FenceAsyncShared();
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

template <Mode kMode>
__device__ __forceinline__ void MultiplyStage(float (&d)[128],
                                              const char* stage, int group) {
  constexpr bool kAcrossA = kMode == Mode::kTN;
  constexpr bool kAcrossB = kMode != Mode::kNT;
  const char* const a = stage + group * kChunk;
  const char* const b = stage + kBytesA;
  hopper::WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    // 16 deep: 32 bytes along rows, 16 rows across them.
    hopper::Wgmma<kAcrossA, kAcrossB>(
        d, hopper::Descriptor(a + step * (kAcrossA ? 2048 : 32), kChunk),
        hopper::Descriptor(b + step * (kAcrossB ? 2048 : 32), kChunk));
  }
  hopper::WgmmaCommit();
}

template <Mode kMode, typename Out>
__device__ void Store(const Problem& p, const Tile& t, const float (&d)[128],
                      int group, Out* out) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int width = kMode == Mode::kNT ? p.n : p.k;
  const int rows = kMode == Mode::kTN ? p.n : t.end - t.begin;
  const int64_t base = kMode == Mode::kTN ? static_cast<int64_t>(t.group) * p.n
                                          : static_cast<int64_t>(t.begin);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = t.row + group * 64 + thread / 32 * 16 + lane / 4 + half * 8;
    if (row >= rows) continue;
    Out* const line = out + (base + row) * width;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int column = t.column + 8 * j + 2 * (lane % 4);
      if (column >= width) continue;  // width is even
      float v[2] = {p.alpha * d[4 * j + 2 * half],
                    p.alpha * d[4 * j + 2 * half + 1]};
      if (p.accumulate) {
        float old[2];
        LoadVec<2>(line + column, old);
        v[0] += old[0];
        v[1] += old[1];
      }
      StoreVec<2>(line + column, v);
    }
  }
}

template <Mode kMode, typename Out>
__global__ void __launch_bounds__(kThreads, 1)
    WgmmaKernel(const __grid_constant__ CUtensorMap map_a,
                const __grid_constant__ CUtensorMap map_b, Out* out,
                const Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared_raw[];
  __shared__ uint64_t full[kStages], empty[kStages];
  __shared__ int first[kMaxGroups + 1];
  char* const shared = reinterpret_cast<char*>(
      (reinterpret_cast<uintptr_t>(shared_raw) + 1023) / 1024 * 1024);
  if (threadIdx.x < 32) CountTiles<kMode>(p, first);
  if (threadIdx.x == 32) {
    for (int i = 0; i < kStages; ++i) {
      hopper::BarrierInit(&full[i], 1);
      hopper::BarrierInit(&empty[i], kConsumers / 32);  // one a warp
    }
    hopper::FenceAsyncShared();
  }
  __syncthreads();
  const int num_tiles = first[p.groups];
  int stage = 0, phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (threadIdx.x < 128) {
    hopper::FewerRegisters<40>();
    if (threadIdx.x != 0) return;
    for (int i = blockIdx.x; i < num_tiles; i += gridDim.x) {
      const Tile t = TileAt<kMode>(p, first, i);
      const int depth = Depth<kMode>(p, t);
      for (int at = 0; at < depth; at += kDepth) {
        hopper::BarrierWait(&empty[stage], phase ^ 1);
        hopper::BarrierExpect(&full[stage], kStageBytes);
        Load<kMode>(&map_a, &map_b, t, at, shared + stage * kStageBytes,
                    &full[stage]);
        advance();
      }
    }
    return;
  }
  hopper::MoreRegisters<232>();
  const int group = threadIdx.x / 128 - 1;
  for (int i = blockIdx.x; i < num_tiles; i += gridDim.x) {
    const Tile t = TileAt<kMode>(p, first, i);
    const int depth = Depth<kMode>(p, t);
    const int rows = kMode == Mode::kTN ? p.n : t.end - t.begin;
    // All threads of a warpgroup agree; the shuffle lets the compiler know.
    const bool mine =
        __shfl_sync(0xFFFFFFFF, t.row + group * 64 < rows, 0) != 0;
    // Every stage, in step with the producer. The products of a stage are done
    // when those of the next are on their way: then it may be refilled.
    const auto stages = [&](const auto& use) {
      int previous = -1;
      for (int at = 0; at < depth; at += kDepth) {
        hopper::BarrierWait(&full[stage], phase);
        char* const here = shared + stage * kStageBytes;
        if (kMode == Mode::kTN && depth - at < kDepth) {
          ZeroRows(here, depth - at);
        }
        use(here);
        if (previous >= 0 && threadIdx.x % 32 == 0) {
          hopper::BarrierArrive(&empty[previous]);
        }
        previous = stage;
        advance();
      }
      return previous;
    };
    if (!mine) {
      const int last = stages([](const char*) {});
      if (last >= 0 && threadIdx.x % 32 == 0) {
        hopper::BarrierArrive(&empty[last]);
      }
      continue;
    }
    float d[128];
#pragma unroll
    for (int j = 0; j < 128; ++j) d[j] = 0;
    const int last = stages([&](const char* here) {
      MultiplyStage<kMode>(d, here, group);
      hopper::WgmmaWait<1>();
    });
    hopper::WgmmaWait<0>();
    if (last >= 0 && threadIdx.x % 32 == 0) {
      hopper::BarrierArrive(&empty[last]);
    }
    // An empty group's gradient is zero, or stays as it was.
    Store<kMode>(p, t, d, group, out);
  }
#endif
}

absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> Encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  CADRE_RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                       12000, cudaEnableDefault, &result),
      "grouped_gemm: looking up cuTensorMapEncodeTiled"));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        "grouped_gemm: the driver has no cuTensorMapEncodeTiled; install a "
        "driver for CUDA 13");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

// How TMA reads a row-major bf16 tensor [planes, rows, columns]; rank 2 without
// planes.
absl::StatusOr<CUtensorMap> MapOf(const Tensor& t, int box_rows) {
  static const absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> encode =
      Encoder();
  CADRE_RETURN_IF_ERROR(encode.status());
  const auto rank = static_cast<cuuint32_t>(t.rank());
  cuuint64_t sizes[3], strides[2];
  int64_t stride = 2;
  for (int i = 0; i < t.rank(); ++i) {
    const int64_t dim = t.dim(t.rank() - 1 - i);
    sizes[i] = static_cast<cuuint64_t>(dim);
    stride *= dim;
    if (i < t.rank() - 1) strides[i] = static_cast<cuuint64_t>(stride);
  }
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = (*encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, t.raw(), sizes, strides,
      box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return absl::InternalError(absl::StrCat("grouped_gemm: describing ",
                                          t.DebugString(), " to TMA: CUresult ",
                                          static_cast<int>(result)));
}

template <Mode kMode, typename Out>
absl::Status Run(const Exec& exec, const GroupedGemmArgs& args) {
  const Tensor& a = kMode == Mode::kNT ? args.x : args.y;
  const Tensor& b = kMode == Mode::kTN ? args.x : args.w;
  const Tensor& out = kMode == Mode::kNT   ? args.y
                      : kMode == Mode::kNN ? args.x
                                           : args.w;
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap map_a,
                         MapOf(a, kMode == Mode::kTN ? 64 : kRows));
  CADRE_ASSIGN_OR_RETURN(const CUtensorMap map_b,
                         MapOf(b, kMode == Mode::kNT ? kColumns : 64));
  const Problem problem{.offsets = args.offsets.data<int32_t>(),
                        .groups = static_cast<int>(args.w.dim(0)),
                        .n = static_cast<int>(args.w.dim(1)),
                        .k = static_cast<int>(args.w.dim(2)),
                        .alpha = static_cast<float>(args.alpha),
                        .accumulate = args.accumulate};
  int device = 0, multiprocessors = 0;
  CADRE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device),
                                   "grouped_gemm: asking for the device"));
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "grouped_gemm: asking for the multiprocessors"));
  return Launch("grouped_gemm", exec,
                {.grid = dim3(static_cast<unsigned>(multiprocessors)),
                 .block = dim3(kThreads),
                 .shared_bytes = kStages * kStageBytes + 1024},
                WgmmaKernel<kMode, Out>, map_a, map_b, out.data<Out>(),
                problem);
}

}  // namespace

bool WgmmaTakes(const GroupedGemmArgs& args) {
  return args.x.dtype() == DType::kBF16 && args.x.dim(0) > 0 &&
         args.w.dim(0) <= kMaxGroups && args.w.dim(1) % 8 == 0 &&
         args.w.dim(2) % 8 == 0 &&
         Aligned16(static_cast<const char*>(args.x.raw()),
                   static_cast<const char*>(args.w.raw()),
                   static_cast<const char*>(args.y.raw()));
}

absl::Status GroupedGemmWgmma(const Exec& exec, const GroupedGemmArgs& args) {
  using Bf16 = __nv_bfloat16;
  switch (args.mode) {
    case Mode::kNT:
      return Run<Mode::kNT, Bf16>(exec, args);
    case Mode::kNN:
      return Run<Mode::kNN, Bf16>(exec, args);
    case Mode::kTN:
      break;
  }
  return args.w.dtype() == DType::kF32 ? Run<Mode::kTN, float>(exec, args)
                                       : Run<Mode::kTN, Bf16>(exec, args);
}

}  // namespace cadre
