#include <cooperative_groups.h>

#include <cmath>

#include "base/status_macros.h"
#include "kernels/adamw/adamw.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"

namespace cadre {
namespace {

constexpr char kOp[] = "adamw";
constexpr int kBlock = 256;
constexpr int kPerThread = 8;
constexpr int64_t kPiece = kBlock * kPerThread;  // elements of a block

struct Slot {
  float* p;
  float* m;
  float* v;
  const float* g;
  __nv_bfloat16* value;  // null = none
  int64_t n;
  int64_t first_block;
  float decay, beta1, beta2, rest1, rest2, rate, correction, epsilon, scale;
};

// Travels as a kernel argument (4 KiB at most), so that no table has to be
// copied to the device.
constexpr int kSlots = 40;
struct Table {
  Slot slots[kSlots];
  int count;
};
static_assert(sizeof(Table) <= 4096);

// Products and sums round one by one, as on the CPU.
__device__ __forceinline__ void Update(const Slot& s, int64_t i) {
  const float g = __fmul_rn(s.scale, s.g[i]);
  const float m = __fadd_rn(__fmul_rn(s.beta1, s.m[i]), __fmul_rn(s.rest1, g));
  const float v = __fadd_rn(__fmul_rn(s.beta2, s.v[i]),
                            __fmul_rn(s.rest2, __fmul_rn(g, g)));
  const float root =
      __fadd_rn(__fsqrt_rn(__fdiv_rn(v, s.correction)), s.epsilon);
  const float p = __fsub_rn(__fmul_rn(s.p[i], s.decay),
                            __fdiv_rn(__fmul_rn(s.rate, m), root));
  s.m[i] = m;
  s.v[i] = v;
  s.p[i] = p;
  if (s.value != nullptr) s.value[i] = __float2bfloat16_rn(p);
}

__global__ void __launch_bounds__(kBlock)
    UpdateKernel(const __grid_constant__ Table table) {
  int low = 0, high = table.count;  // first_block of low <= block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.slots[middle].first_block <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Slot& slot = table.slots[low];
  const int64_t begin = (blockIdx.x - slot.first_block) * kPiece + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int64_t i = begin + j * kBlock;
    if (i < slot.n) Update(slot, i);
  }
}

Slot MakeSlot(const AdamWArgs& args, int64_t first_block) {
  const double t = static_cast<double>(args.step);
  return {
      .p = args.p.data<float>(),
      .m = args.m.data<float>(),
      .v = args.v.data<float>(),
      .g = args.g.data<float>(),
      .value = args.value.data<__nv_bfloat16>(),
      .n = args.p.num_elements(),
      .first_block = first_block,
      .decay = static_cast<float>(1 - args.learning_rate * args.weight_decay),
      .beta1 = static_cast<float>(args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .rest1 = static_cast<float>(1 - args.beta1),
      .rest2 = static_cast<float>(1 - args.beta2),
      .rate = static_cast<float>(args.learning_rate /
                                 (1 - std::pow(args.beta1, t))),
      .correction = static_cast<float>(1 - std::pow(args.beta2, t)),
      .epsilon = static_cast<float>(args.epsilon),
      .scale = static_cast<float>(args.grad_scale),
  };
}

// One cluster: its blocks share the sum through distributed shared memory, so
// that neither workspace nor atomics are needed.
constexpr int kCluster = 8;
constexpr int kSumBlock = 1024;

__device__ __forceinline__ double BlockSumDouble(double x) {
  __shared__ double partial[32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = partial[threadIdx.x % 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

template <typename T>
__global__ void __cluster_dims__(kCluster) __launch_bounds__(kSumBlock)
    SumOfSquaresKernel(const T* __restrict__ x, int64_t n, double* sum) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ double mine;
  constexpr int N = kVec<T>;
  constexpr int64_t kStride = int64_t(kCluster) * kSumBlock;
  const int64_t thread = int64_t(blockIdx.x) * kSumBlock + threadIdx.x;
  const bool vector = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const int64_t packs = vector ? n / N : 0;
  double total = 0;
  for (int64_t i = thread; i < packs; i += 4 * kStride) {
    float v[4][N];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[u][j] = 0;
      if (i + u * kStride < packs) LoadVec<N>(x + (i + u * kStride) * N, v[u]);
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int j = 0; j < N; ++j) total += double(v[u][j]) * double(v[u][j]);
    }
  }
  for (int64_t i = packs * N + thread; i < n; i += kStride) {
    const double v = ToFloat(x[i]);
    total += v * v;
  }
  total = BlockSumDouble(total);
  if (threadIdx.x == 0) mine = total;
  cluster.sync();
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    double all = 0;
    for (int block = 0; block < kCluster; ++block)
      all += *cluster.map_shared_rank(&mine, block);
    *sum += all;
  }
  cluster.sync();  // `mine` lives until it has been read
}

}  // namespace

absl::Status AdamWCuda(const Exec& exec, absl::Span<const AdamWArgs> args) {
  Table table;
  table.count = 0;
  int64_t blocks = 0;
  auto flush = [&] {
    const absl::Status status =
        Launch(kOp, exec, {.grid = unsigned(blocks), .block = kBlock},
               UpdateKernel, table);
    table.count = 0;
    blocks = 0;
    return status;
  };
  for (const AdamWArgs& one : args) {
    if (one.p.num_elements() == 0) continue;
    table.slots[table.count++] = MakeSlot(one, blocks);
    blocks += (one.p.num_elements() + kPiece - 1) / kPiece;
    if (table.count == kSlots) CADRE_RETURN_IF_ERROR(flush());
  }
  return flush();
}

absl::Status SumOfSquaresCuda(const Exec& exec, const SumOfSquaresArgs& args) {
  if (args.x.num_elements() == 0) return absl::OkStatus();
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec, {.grid = kCluster, .block = kSumBlock},
                  SumOfSquaresKernel<T>, args.x.data<T>(),
                  args.x.num_elements(), args.sum.data<double>());
  });
}

}  // namespace cadre
