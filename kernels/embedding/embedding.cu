#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/embedding/embedding.h"

namespace cadre {
namespace {

constexpr char kOp[] = "embedding";
constexpr int kBlock = 256;

// A block copies a row. An id outside the table is the caller's mistake, which
// only the CPU can tell: it reads no memory here and gives zeros.
template <typename T, int N>
__global__ void ForwardKernel(const int32_t* __restrict__ ids,
                              const T* __restrict__ table, int64_t vocabulary,
                              int64_t width, T* __restrict__ y) {
  const int64_t t = blockIdx.x;
  const int32_t id = ids[t];
  const bool inside = id >= 0 && id < vocabulary;
  for (int64_t i = threadIdx.x * N; i < width; i += kBlock * N) {
    float v[N] = {};
    if (inside) LoadVec<N>(table + id * width + i, v);
    StoreVec<N>(y + t * width + i, v);
  }
}

// A block owns the row of token t's id if t is the id's first token; it then
// adds the gradients of all tokens with that id in their order. Every block
// reads the ids before its token, which the cache serves.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    BackwardKernel(const int32_t* __restrict__ ids, int64_t tokens,
                   const T* __restrict__ dy, int64_t vocabulary, int64_t width,
                   int64_t pad_id, float* dtable) {
  __shared__ uint32_t matches[kBlock / 32];
  const int64_t first = blockIdx.x;
  const int32_t id = ids[first];
  if (id == pad_id || id < 0 || id >= vocabulary) return;
  for (int64_t base = 0; base < first; base += kBlock) {
    const int64_t t = base + threadIdx.x;
    if (__syncthreads_or(t < first && ids[t] == id)) return;
  }
  float* const row = dtable + id * width;
  for (int64_t base = first; base < tokens; base += kBlock) {
    const int64_t t = base + threadIdx.x;
    const uint32_t mask =
        __ballot_sync(0xffffffffu, t < tokens && ids[t] == id);
    if (threadIdx.x % 32 == 0) matches[threadIdx.x / 32] = mask;
    __syncthreads();
    for (int word = 0; word < kBlock / 32; ++word) {
      for (uint32_t left = matches[word]; left != 0; left &= left - 1) {
        const int64_t source = base + word * 32 + __ffs(left) - 1;
        for (int64_t i = threadIdx.x; i < width; i += kBlock)
          row[i] += ToFloat(dy[source * width + i]);
      }
    }
    __syncthreads();
  }
}

}  // namespace

absl::Status EmbeddingForwardCuda(const Exec& exec,
                                  const EmbeddingForwardArgs& args) {
  const int64_t tokens = args.ids.dim(0), width = args.table.dim(1);
  return DispatchCuda(args.table.dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto launch = [&](auto n) {
      return Launch(kOp, exec, {.grid = unsigned(tokens), .block = kBlock},
                    ForwardKernel<T, n()>, args.ids.data<int32_t>(),
                    args.table.data<T>(), args.table.dim(0), width,
                    args.y.data<T>());
    };
    return Aligned16(args.table.raw(), args.y.raw()) && width % kVec<T> == 0
               ? launch(std::integral_constant<int, kVec<T>>{})
               : launch(std::integral_constant<int, 1>{});
  });
}

absl::Status EmbeddingBackwardCuda(const Exec& exec,
                                   const EmbeddingBackwardArgs& args) {
  const int64_t tokens = args.ids.dim(0);
  return DispatchCuda(args.dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec, {.grid = unsigned(tokens), .block = kBlock},
                  BackwardKernel<T>, args.ids.data<int32_t>(), tokens,
                  args.dy.data<T>(), args.dtable.dim(0), args.dtable.dim(1),
                  args.pad_id, args.dtable.data<float>());
  });
}

}  // namespace cadre
