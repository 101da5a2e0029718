#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/layernorm/layernorm.h"

namespace cadre {
namespace {

// Elements worth a piece of their own.
constexpr int64_t kGrain = 16384;

template <typename S>
absl::Status Forward(const Exec& exec, const LayerNormForwardArgs& args) {
  const int64_t d = LastDim(args.x);
  const S* const w = args.w.data<S>();
  const S* const b = args.b.data<S>();
  ParallelFor(exec, NumRows(args.x), kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = args.x.data<S>() + row * d;
                  S* y = args.y.data<S>() + row * d;
                  S sum = 0;
#pragma omp simd reduction(+ : sum)
                  for (int64_t i = 0; i < d; ++i) sum += x[i];
                  const S mean = sum / S(d);
                  S squares = 0;
#pragma omp simd reduction(+ : squares)
                  for (int64_t i = 0; i < d; ++i)
                    squares += (x[i] - mean) * (x[i] - mean);
                  const S rho = 1 / std::sqrt(squares / S(d) + S(args.eps));
                  for (int64_t i = 0; i < d; ++i)
                    y[i] = (x[i] - mean) * rho * w[i] + b[i];
                }
              });
  return absl::OkStatus();
}

}  // namespace

absl::Status LayerNormForwardCpu(const Exec& exec,
                                 const LayerNormForwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
