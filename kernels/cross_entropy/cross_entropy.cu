#include <algorithm>
#include <cfloat>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gemm/gemm.h"

namespace cadre {
namespace {

constexpr char kOp[] = "cross_entropy";
constexpr int kBlock = 512;

// Losses are multiples of this, so that their sum in double is exact, hence the
// same in whatever order the atomics come.
constexpr double kQuantum = 1.0 / (1 << 24);

// A block is a row of logits; read once for the sum, and once more for the
// gradient, which goes to `grad` at the row's start as type G: the logits' own,
// or bf16 over f32 logits (the row is walked forwards, and an element lands at
// or before the place of one that has been read).
template <typename T, typename G>
__global__ void __launch_bounds__(kBlock)
    RowKernel(T* logits, const int32_t* __restrict__ targets,
              int64_t vocabulary, bool vector, bool gradient, double inv_count,
              double* loss_sum) {
  constexpr int N = kVec<T>;
  const int64_t t = blockIdx.x;
  T* const row = logits + t * vocabulary;
  G* const grad = reinterpret_cast<G*>(row);
  const int32_t target = targets[t];
  const int64_t packs = vector ? vocabulary / N : 0;
  // Out of range is the caller's mistake, which only the CPU can tell: such a
  // row counts nowhere here.
  if (target < 0 || target >= vocabulary) {
    if (gradient)
      for (int64_t e = threadIdx.x; e < vocabulary; e += kBlock)
        grad[e] = FromFloat<G>(0);
    return;
  }
  float largest = -FLT_MAX, sum = 0;  // finite: logits may be -inf
  auto take = [&](float x) {
    if (x > largest) {
      sum *= expf(largest - x);
      largest = x;
    }
    sum += expf(x - largest);
  };
  for (int64_t i = threadIdx.x; i < packs; i += kBlock) {
    float v[N];
    LoadVec<N>(row + i * N, v);
    float top = v[0];
#pragma unroll
    for (int j = 1; j < N; ++j) top = fmaxf(top, v[j]);
    if (top > largest) {
      sum *= expf(largest - top);
      largest = top;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum += expf(v[j] - largest);
  }
  for (int64_t e = packs * N + threadIdx.x; e < vocabulary; e += kBlock)
    take(ToFloat(row[e]));
  const float at_target = ToFloat(row[target]);
  const float top = BlockMax(largest);
  sum = BlockSum(sum * expf(largest - top));
  if (threadIdx.x == 0) {
    const double loss = log(double(sum)) + (double(top) - double(at_target));
    atomicAdd(loss_sum,
              isfinite(loss) ? rint(loss / kQuantum) * kQuantum : loss);
  }
  if (!gradient) return;
  const float factor = static_cast<float>(inv_count / double(sum));
  const float one = static_cast<float>(inv_count);
  if constexpr (sizeof(G) == sizeof(T)) {
    for (int64_t i = threadIdx.x; i < packs; i += kBlock) {
      float v[N];
      LoadVec<N>(row + i * N, v);
#pragma unroll
      for (int j = 0; j < N; ++j)
        v[j] = expf(v[j] - top) * factor - (i * N + j == target ? one : 0);
      StoreVec<N>(grad + i * N, v);
    }
    for (int64_t e = packs * N + threadIdx.x; e < vocabulary; e += kBlock) {
      grad[e] = FromFloat<G>(expf(ToFloat(row[e]) - top) * factor -
                             (e == target ? one : 0));
    }
  } else {
    for (int64_t base = 0; base < vocabulary; base += kBlock * N) {
      const int64_t begin = base + threadIdx.x * N;
      float v[N];
#pragma unroll
      for (int j = 0; j < N; ++j)
        v[j] = begin + j < vocabulary ? ToFloat(row[begin + j]) : 0;
      __syncthreads();  // all of the piece is read before any is overwritten
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (begin + j < vocabulary)
          grad[begin + j] = FromFloat<G>(expf(v[j] - top) * factor -
                                         (begin + j == target ? one : 0));
      }
      __syncthreads();
    }
  }
}

template <typename T, typename G>
absl::Status LaunchRows(const Exec& exec, const CrossEntropyArgs& args) {
  const int64_t vocabulary = args.logits.dim(1);
  const bool vector = Aligned16(args.logits.raw()) && vocabulary % kVec<T> == 0;
  return Launch(kOp, exec,
                {.grid = unsigned(args.logits.dim(0)), .block = kBlock},
                RowKernel<T, G>, args.logits.data<T>(),
                args.targets.data<int32_t>(), vocabulary, vector, args.gradient,
                args.inv_count, args.loss_sum.data<double>());
}

}  // namespace

absl::Status CrossEntropyCuda(const Exec& exec, const CrossEntropyArgs& args) {
  return DispatchCuda(args.logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchRows<T, T>(exec, args);
  });
}

absl::Status LinearCrossEntropyCuda(const Exec& exec,
                                    const LinearCrossEntropyArgs& args) {
  const int64_t tokens = args.x.dim(0), vocabulary = args.head.dim(0);
  const DType dtype = args.x.dtype();
  const bool wide = args.workspace.dtype() != dtype;  // f32 beside bf16
  const bool gradient = args.dx.present() || args.dhead.present();
  const int64_t block = args.workspace.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += block) {
    const int64_t end = std::min(tokens, begin + block);
    const Tensor x = args.x.Rows(begin, end);
    const Tensor logits = args.workspace.Rows(0, end - begin);
    CADRE_RETURN_IF_ERROR(
        Gemm(exec, {.a = x, .b = args.head, .c = logits, .trans_b = true}));
    if (args.logits.present()) {
      const Tensor out = args.logits.Rows(begin, end);
      // f32 logits are rounded once, by a second product.
      const absl::Status status =
          wide ? Gemm(exec, {.a = x, .b = args.head, .c = out, .trans_b = true})
               : CudaStatus(
                     cudaMemcpyAsync(out.raw(), logits.raw(), out.num_bytes(),
                                     cudaMemcpyDeviceToDevice, StreamOf(exec)),
                     "cross_entropy: copying logits");
      CADRE_RETURN_IF_ERROR(status);
    }
    const CrossEntropyArgs rows = {.logits = logits,
                                   .targets = args.targets.Rows(begin, end),
                                   .loss_sum = args.loss_sum,
                                   .gradient = gradient,
                                   .inv_count = args.inv_count};
    const absl::Status status =
        wide ? LaunchRows<float, __nv_bfloat16>(exec, rows)
             : CrossEntropyCuda(exec, rows);
    CADRE_RETURN_IF_ERROR(status);
    // The gradient in x's dtype; over wide logits it fills half of each row.
    const Tensor dlogits(logits.raw(), dtype, {end - begin, vocabulary});
    const int64_t pitch = wide ? 2 * vocabulary : vocabulary;
    if (args.dx.present()) {
      CADRE_RETURN_IF_ERROR(Gemm(exec, {.a = dlogits,
                                        .b = args.head,
                                        .c = args.dx.Rows(begin, end),
                                        .lda = pitch}));
    }
    if (args.dhead.present()) {
      CADRE_RETURN_IF_ERROR(Gemm(exec, {.a = dlogits,
                                        .b = x,
                                        .c = args.dhead,
                                        .trans_a = true,
                                        .beta = 1,
                                        .lda = pitch}));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
