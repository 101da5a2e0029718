#include <algorithm>
#include <cmath>

#include "kernels/common/documents.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/sparse_index/sparse_index.h"

// A block is a query. A thread holds one key in registers and walks the heads,
// whose queries lie in shared memory, so that every key's sums run in one
// order and equal keys tie exactly. Scores stay in shared memory while they
// fit; behind that they are formed again in each of the five passes that
// select. Nothing of size queries x keys is ever stored.

namespace cadre {
namespace {

constexpr char kOp[] = "sparse_index";
constexpr int kThreads = 256;
constexpr int64_t kMaxDim = 256;
// Bytes of shared memory of a block, with room for the static part.
constexpr int64_t kSharedBytes = 220 * 1024;

template <typename T>
struct Params {
  const T* q;
  const T* k;
  const float* head_weight;
  const T* pool_gate;
  const T* pool_ape;
  const int32_t* cu;
  int docs, heads, dim, pool;
  int64_t count;  // candidates kept: tokens or pools
  int64_t width;
  int64_t cached;  // scores that shared memory holds
  float scale;
  int32_t* selected;
  int32_t* num_valid;
};

// Unsigned numbers in the order of the scores; -0 equals +0, NaN comes last.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  if (x != x) x = -INFINITY;
  const uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Key of candidate s of the document that starts at `begin`: a token's, or a
// pool's mean under the softmax of its gates.
template <int kDim, typename T>
__device__ __forceinline__ void LoadKey(const Params<T>& p, int64_t begin,
                                        int64_t s, float (&key)[kDim]) {
  if (p.pool == 0) {
    const T* const row = p.k + (begin + s) * p.dim;
#pragma unroll
    for (int d = 0; d < kDim; ++d) key[d] = d < p.dim ? ToFloat(row[d]) : 0;
    return;
  }
  const int64_t first = (begin + s * p.pool) * p.dim;
#pragma unroll
  for (int d = 0; d < kDim; ++d) {
    key[d] = 0;
    if (d >= p.dim) continue;
    float largest = -INFINITY;
    for (int j = 0; j < p.pool; ++j) {
      largest = fmaxf(largest, ToFloat(p.pool_gate[first + j * p.dim + d]) +
                                   ToFloat(p.pool_ape[j * p.dim + d]));
    }
    float sum = 0, mixed = 0;
    for (int j = 0; j < p.pool; ++j) {
      const float e = expf(ToFloat(p.pool_gate[first + j * p.dim + d]) +
                           ToFloat(p.pool_ape[j * p.dim + d]) - largest);
      sum += e;
      mixed += e * ToFloat(p.k[first + j * p.dim + d]);
    }
    key[d] = mixed / sum;
  }
}

// `queries` are [heads][kDim], zeros behind the width.
template <int kDim, typename T>
__device__ __noinline__ uint32_t Score(const Params<T>& p, const float* queries,
                                       const float* omega, int64_t begin,
                                       int64_t s) {
  float key[kDim];
  LoadKey<kDim>(p, begin, s, key);
  float score = 0;
  for (int h = 0; h < p.heads; ++h) {
    const float4* const q = reinterpret_cast<const float4*>(queries + h * kDim);
    float dot = 0;
#pragma unroll
    for (int d = 0; d < kDim / 4; ++d) {
      const float4 v = q[d];
      dot = fmaf(v.x, key[4 * d], dot);
      dot = fmaf(v.y, key[4 * d + 1], dot);
      dot = fmaf(v.z, key[4 * d + 2], dot);
      dot = fmaf(v.w, key[4 * d + 3], dot);
    }
    score = fmaf(omega[h], fmaxf(0.0f, p.scale * dot), score);
  }
  return OrderedBits(score);
}

// Exclusive count of the set flags of the threads before this one; `total` of
// all. Two barriers.
__device__ __forceinline__ int CountBefore(bool flag, int* warps, int* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned mask = __ballot_sync(0xffffffffu, flag);
  if (lane == 0) warps[warp] = __popc(mask);
  __syncthreads();
  int before = __popc(mask & ((1u << lane) - 1)), all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  __syncthreads();
  *total = all;
  return before;
}

template <int kDim, typename T>
__global__ void __launch_bounds__(kThreads) IndexKernel(const Params<T> p) {
  extern __shared__ __align__(16) float shared[];
  __shared__ int histogram[256];
  __shared__ int warps[kThreads / 32];
  __shared__ uint32_t chosen;  // digit
  __shared__ int above;        // candidates in higher digits
  float* const queries = shared;
  float* const omega = queries + p.heads * kDim;
  uint32_t* const cache = reinterpret_cast<uint32_t*>(omega + p.heads);

  const int64_t t = blockIdx.x;
  int32_t* const row = p.selected + t * p.width;
  const DocumentRange document = DocumentAt(p.cu, p.docs, t);
  if (document.begin == document.end) {  // padding
    for (int64_t i = threadIdx.x; i < p.width; i += kThreads) row[i] = -1;
    if (threadIdx.x == 0) p.num_valid[t] = 0;
    return;
  }
  const int64_t visible = t - document.begin + 1;
  const int64_t candidates = p.pool == 0 ? visible : visible / p.pool;
  const int repeat = p.pool == 0 ? 1 : p.pool;
  const int64_t kept = min(candidates, p.count);

  auto emit = [&](int64_t position, int64_t s) {
    for (int j = 0; j < repeat; ++j)
      row[position * repeat + j] = static_cast<int32_t>(s * repeat + j);
  };
  if (candidates <= p.count) {
    for (int64_t s = threadIdx.x; s < candidates; s += kThreads) emit(s, s);
  } else {
    for (int i = threadIdx.x; i < p.heads * kDim; i += kThreads) {
      const int h = i / kDim, d = i % kDim;
      queries[i] = d < p.dim ? ToFloat(p.q[(t * p.heads + h) * p.dim + d]) : 0;
    }
    for (int h = threadIdx.x; h < p.heads; h += kThreads)
      omega[h] = p.head_weight[t * p.heads + h];
    __syncthreads();
    for (int64_t s = threadIdx.x; s < min(candidates, p.cached); s += kThreads)
      cache[s] = Score<kDim>(p, queries, omega, document.begin, s);
    auto score = [&](int64_t s) {
      return s < p.cached ? cache[s]
                          : Score<kDim>(p, queries, omega, document.begin, s);
    };
    // The score of the last one kept, digit by digit from the top.
    uint32_t prefix = 0;
    int left = static_cast<int>(kept);  // still to find within the prefix
    for (int shift = 24; shift >= 0; shift -= 8) {
      histogram[threadIdx.x] = 0;
      __syncthreads();
      for (int64_t s = threadIdx.x; s < candidates; s += kThreads) {
        const uint32_t bits = score(s);
        if (shift == 24 || bits >> (shift + 8) == prefix)
          atomicAdd(&histogram[bits >> shift & 255], 1);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int higher = 0, digit = 255;
        while (digit > 0 && higher + histogram[digit] < left)
          higher += histogram[digit--];
        chosen = digit;
        above = higher;
      }
      __syncthreads();
      prefix = prefix << 8 | chosen;
      left -= above;
      __syncthreads();  // `chosen` and the histogram are written again
    }
    // `left` of the candidates that equal the threshold: the first ones.
    int64_t written = 0;
    int equal_before = 0;
    for (int64_t base = 0; base < candidates; base += kThreads) {
      const int64_t s = base + threadIdx.x;
      const uint32_t bits = s < candidates ? score(s) : 0;
      const bool equal = s < candidates && bits == prefix;
      int equals, emitted;
      const int rank = equal_before + CountBefore(equal, warps, &equals);
      const bool keep =
          s < candidates && (bits > prefix || (equal && rank < left));
      const int position = CountBefore(keep, warps, &emitted);
      if (keep) emit(written + position, s);
      written += emitted;
      equal_before += equals;
    }
  }
  // The tail of an incomplete pool, then -1.
  const int64_t tail = visible - candidates * repeat;
  for (int64_t i = kept * repeat + threadIdx.x; i < p.width; i += kThreads) {
    const int64_t offset = i - kept * repeat;
    row[i] =
        offset < tail ? static_cast<int32_t>(candidates * repeat + offset) : -1;
  }
  if (threadIdx.x == 0)
    p.num_valid[t] = static_cast<int32_t>(kept * repeat + tail);
}

}  // namespace

absl::Status SparseIndexCuda(const Exec& exec, const SparseIndexArgs& args) {
  const int64_t tokens = args.q.dim(0), heads = args.q.dim(1);
  const int64_t dim = args.q.dim(2);
  return DispatchCuda(args.q.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    auto launch = [&](auto padded) -> absl::Status {
      const int64_t fixed = heads * (padded() + 1) * sizeof(float);
      if (fixed + 1024 > kSharedBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": q is ", args.q.DebugString(),
                         "; the CUDA kernel holds a query's heads in ",
                         kSharedBytes, " bytes and needs ", fixed));
      }
      Params<T> p = {};
      p.q = args.q.data<T>();
      p.k = args.k.data<T>();
      p.head_weight = args.head_weight.data<float>();
      p.pool_gate = args.pool_gate.data<T>();
      p.pool_ape = args.pool_ape.data<T>();
      p.cu = args.cu_seqlens.data<int32_t>();
      p.docs = static_cast<int>(args.cu_seqlens.dim(0) - 1);
      p.heads = static_cast<int>(heads);
      p.dim = static_cast<int>(dim);
      p.pool = static_cast<int>(args.kpool);
      p.count = args.kpool > 0 ? args.topk / args.kpool : args.topk;
      p.width = args.selected.dim(1);
      const int64_t most = args.kpool > 0 ? tokens / args.kpool + 1 : tokens;
      p.cached = std::min<int64_t>(most, (kSharedBytes - fixed) / 4);
      p.scale = 1 / std::sqrt(static_cast<float>(dim));
      p.selected = args.selected.data<int32_t>();
      p.num_valid = args.num_valid.data<int32_t>();
      return Launch(kOp, exec,
                    {.grid = unsigned(tokens),
                     .block = kThreads,
                     .shared_bytes = size_t(fixed + p.cached * 4)},
                    IndexKernel<padded(), T>, p);
    };
    if (dim <= 32) return launch(std::integral_constant<int, 32>{});
    if (dim <= 128) return launch(std::integral_constant<int, 128>{});
    if (dim <= kMaxDim) return launch(std::integral_constant<int, 256>{});
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": q is ", args.q.DebugString(),
        "; the CUDA kernel holds heads of at most ", kMaxDim, " columns"));
  });
}

}  // namespace cadre
