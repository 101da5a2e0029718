#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/l2norm/l2norm.h"

namespace cadre {
namespace {

// Elements worth a piece of their own.
constexpr int64_t kGrain = 16384;

template <typename S>
S ReciprocalNorm(const S* x, int64_t d, double eps) {
  S squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares + S(eps));
}

template <typename S>
absl::Status Forward(const Exec& exec, const L2NormForwardArgs& args) {
  const int64_t d = LastDim(args.x);
  ParallelFor(exec, NumRows(args.x), kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = args.x.data<S>() + row * d;
                  S* y = args.y.data<S>() + row * d;
                  const S factor = ReciprocalNorm(x, d, args.eps);
                  for (int64_t i = 0; i < d; ++i) y[i] = factor * x[i];
                }
              });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const L2NormBackwardArgs& args) {
  const int64_t d = LastDim(args.x);
  ParallelFor(exec, NumRows(args.x), kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = args.x.data<S>() + row * d;
                  const S* dy = args.dy.data<S>() + row * d;
                  S* dx = args.dx.data<S>() + row * d;
                  const S factor = ReciprocalNorm(x, d, args.eps);
                  S dot = 0;
#pragma omp simd reduction(+ : dot)
                  for (int64_t i = 0; i < d; ++i) dot += factor * x[i] * dy[i];
                  const S along = dot * factor;  // <y,dy> / nu
                  for (int64_t i = 0; i < d; ++i)
                    dx[i] = factor * (dy[i] - along * x[i]);
                }
              });
  return absl::OkStatus();
}

}  // namespace

absl::Status L2NormForwardCpu(const Exec& exec, const L2NormForwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status L2NormBackwardCpu(const Exec& exec,
                               const L2NormBackwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
