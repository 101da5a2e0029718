// The product in plain f32 arithmetic: what f32 runs on, and the fallback of
// bf16 for sizes that the tensor-core kernels do not take.
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch.h"

namespace cadre {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256;

// out(i,j) = sum_r a(i,r) b(j,r). In kTN i runs over N and r over the group's
// rows; otherwise i runs over the group's rows.
template <typename T, typename Out>
struct Operands {
  const T* a;
  const T* b;
  Out* out;
  int64_t a_row, a_depth;           // strides of a
  int64_t b_row, b_depth, b_group;  // strides of b
  int64_t out_row, out_group;
  int64_t columns;  // j
  int64_t rows;     // i, kTN
  int64_t depth;    // r, unless kTN
  const int32_t* offsets;
  int groups;
  float alpha;
  bool accumulate;
};

// What one block works on: rows [begin, end) of group g, or none.
struct Tile {
  int group = -1;
  int64_t begin = 0, end = 0;
};

// Tiles are counted group after group; every block finds its own, so that the
// grid needs no table and the host no sizes.
__device__ Tile FindTile(const int32_t* offsets, int groups, int64_t index) {
  for (int g = 0; g < groups; ++g) {
    const int64_t rows = offsets[g + 1] - offsets[g];
    const int64_t tiles = (rows + kTile - 1) / kTile;
    if (index < tiles) {
      const int64_t begin = offsets[g] + index * kTile;
      return {g, begin,
              min(begin + kTile, static_cast<int64_t>(offsets[g + 1]))};
    }
    index -= tiles;
  }
  return {};
}

template <typename T, typename Out, bool kTransposed>
__global__ void __launch_bounds__(kThreads)
    PlainKernel(const Operands<T, Out> p) {
  __shared__ float a_tile[kDepth][kTile + 4], b_tile[kDepth][kTile + 4];
  __shared__ Tile tile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kTile;
  if (threadIdx.x == 0) {
    if (kTransposed) {
      const int64_t begin = static_cast<int64_t>(blockIdx.y) * kTile;
      tile = {static_cast<int>(blockIdx.z), begin, min(begin + kTile, p.rows)};
    } else {
      tile = FindTile(p.offsets, p.groups, blockIdx.y);
    }
  }
  __syncthreads();
  const Tile t = tile;
  if (t.group < 0) return;
  const int64_t r_begin = kTransposed ? p.offsets[t.group] : 0;
  const int64_t r_end = kTransposed ? p.offsets[t.group + 1] : p.depth;
  if (kTransposed && p.accumulate && r_begin == r_end) return;
  const T* const b = p.b + t.group * p.b_group;
  Out* const out = p.out + t.group * p.out_group;

  float sum[4][4] = {};
  const int ti = threadIdx.x / 16 * 4, tj = threadIdx.x % 16 * 4;
  for (int64_t r0 = r_begin; r0 < r_end; r0 += kDepth) {
    for (int e = threadIdx.x; e < kTile * kDepth; e += kThreads) {
      // Neighbouring threads read neighbouring memory in either layout.
      const int ai = p.a_depth == 1 ? e / kDepth : e % kTile;
      const int ar = p.a_depth == 1 ? e % kDepth : e / kTile;
      const int64_t i = t.begin + ai, r = r0 + ar;
      a_tile[ar][ai] = i < t.end && r < r_end
                           ? ToFloat(p.a[i * p.a_row + r * p.a_depth])
                           : 0.0f;
      const int bj = p.b_depth == 1 ? e / kDepth : e % kTile;
      const int br = p.b_depth == 1 ? e % kDepth : e / kTile;
      const int64_t j = column0 + bj, rb = r0 + br;
      b_tile[br][bj] = j < p.columns && rb < r_end
                           ? ToFloat(b[j * p.b_row + rb * p.b_depth])
                           : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kDepth; ++r) {
      float av[4], bv[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) av[x] = a_tile[r][ti + x];
#pragma unroll
      for (int x = 0; x < 4; ++x) bv[x] = b_tile[r][tj + x];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
#pragma unroll
        for (int y = 0; y < 4; ++y) sum[x][y] += av[x] * bv[y];
      }
    }
    __syncthreads();
  }
  for (int x = 0; x < 4; ++x) {
    const int64_t i = t.begin + ti + x;
    if (i >= t.end) break;
    for (int y = 0; y < 4; ++y) {
      const int64_t j = column0 + tj + y;
      if (j >= p.columns) break;
      Out* const at = out + i * p.out_row + j;
      const float v = p.alpha * sum[x][y];
      *at = FromFloat<Out>(p.accumulate ? ToFloat(*at) + v : v);
    }
  }
}

template <typename T, typename Out, bool kTransposed>
absl::Status Run(const Exec& exec, const Operands<T, Out>& p, int64_t tiles) {
  const int64_t columns = (p.columns + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(tiles),
                  kTransposed ? static_cast<unsigned>(p.groups) : 1u);
  if (tiles > 65535 || (kTransposed && p.groups > 65535)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grouped_gemm: ", tiles, " tiles of 64 rows in ", p.groups,
        " groups; the plain kernel takes 65535: split the call by rows"));
  }
  return Launch("grouped_gemm", exec, {.grid = grid, .block = dim3(kThreads)},
                PlainKernel<T, Out, kTransposed>, p);
}

template <typename T, typename Out>
absl::Status RunTransposed(const Exec& exec, const GroupedGemmArgs& args) {
  const int64_t groups = args.w.dim(0), n = args.w.dim(1), k = args.w.dim(2);
  const Operands<T, Out> p{.a = args.y.data<T>(),
                           .b = args.x.data<T>(),
                           .out = args.w.data<Out>(),
                           .a_row = 1,
                           .a_depth = n,
                           .b_row = 1,
                           .b_depth = k,
                           .b_group = 0,
                           .out_row = k,
                           .out_group = n * k,
                           .columns = k,
                           .rows = n,
                           .depth = 0,
                           .offsets = args.offsets.data<int32_t>(),
                           .groups = static_cast<int>(groups),
                           .alpha = static_cast<float>(args.alpha),
                           .accumulate = args.accumulate};
  return Run<T, Out, true>(exec, p, (n + kTile - 1) / kTile);
}

template <typename T>
absl::Status RunRows(const Exec& exec, const GroupedGemmArgs& args) {
  const bool nt = args.mode == GroupedGemmMode::kNT;
  const int64_t groups = args.w.dim(0), n = args.w.dim(1), k = args.w.dim(2);
  const Operands<T, T> p{.a = (nt ? args.x : args.y).data<T>(),
                         .b = args.w.data<T>(),
                         .out = (nt ? args.y : args.x).data<T>(),
                         .a_row = nt ? k : n,
                         .a_depth = 1,
                         .b_row = nt ? k : 1,
                         .b_depth = nt ? 1 : k,
                         .b_group = n * k,
                         .out_row = nt ? n : k,
                         .out_group = 0,
                         .columns = nt ? n : k,
                         .rows = 0,
                         .depth = nt ? k : n,
                         .offsets = args.offsets.data<int32_t>(),
                         .groups = static_cast<int>(groups),
                         .alpha = static_cast<float>(args.alpha),
                         .accumulate = args.accumulate};
  // At most one tile more than full ones in each group.
  return Run<T, T, false>(exec, p, args.x.dim(0) / kTile + groups);
}

}  // namespace

absl::Status GroupedGemmPlain(const Exec& exec, const GroupedGemmArgs& args) {
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (args.mode != GroupedGemmMode::kTN) return RunRows<T>(exec, args);
    return args.w.dtype() == DType::kF32 ? RunTransposed<T, float>(exec, args)
                                         : RunTransposed<T, T>(exec, args);
  });
}

}  // namespace cadre
