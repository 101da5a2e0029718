#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/rmsnorm/rmsnorm.h"

namespace cadre {
namespace {

// Elements worth a piece of their own.
constexpr int64_t kGrain = 16384;

// The factor of xhat in one column.
template <typename S>
struct Weight {
  const S* w;  // null = ones
  S offset;
  S operator()(int64_t i) const { return w == nullptr ? S(1) : offset + w[i]; }
};

template <typename S>
absl::Status Forward(const Exec& exec, const RmsNormForwardArgs& args) {
  const int64_t d = LastDim(args.x);
  const Weight<S> w{args.w.data<S>(), S(args.unit_offset ? 1 : 0)};
  S* const rstd = args.rstd.data<S>();
  ParallelFor(exec, NumRows(args.x), kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = args.x.data<S>() + row * d;
                  S* y = args.y.data<S>() + row * d;
                  S squares = 0;
#pragma omp simd reduction(+ : squares)
                  for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
                  const S rho = 1 / std::sqrt(squares / S(d) + S(args.eps));
                  if (rstd != nullptr) rstd[row] = rho;
                  for (int64_t i = 0; i < d; ++i) y[i] = rho * x[i] * w(i);
                }
              });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const RmsNormBackwardArgs& args) {
  const int64_t rows = NumRows(args.x);
  const int64_t d = LastDim(args.x);
  const Weight<S> w{args.w.data<S>(), S(args.unit_offset ? 1 : 0)};
  const S* const rstd = args.rstd.data<S>();
  const S* const all_x = args.x.data<S>();
  const S* const all_dy = args.dy.data<S>();
  // Before dx, which may replace dy. Cut by columns, so that each sum runs
  // over the rows in order, in double.
  if (args.dw.present()) {
    S* const dw = args.dw.data<S>();
    ParallelFor(exec, d, kGrain / (rows + 1) + 1,
                [&](int64_t begin, int64_t end) {
                  std::vector<double> sums(end - begin);
                  for (int64_t row = 0; row < rows; ++row) {
                    const S* x = all_x + row * d;
                    const S* dy = all_dy + row * d;
                    const S rho = rstd[row];
#pragma omp simd
                    for (int64_t i = begin; i < end; ++i)
                      sums[i - begin] += dy[i] * rho * x[i];
                  }
                  for (int64_t i = begin; i < end; ++i)
                    dw[i] += static_cast<S>(sums[i - begin]);
                });
  }
  ParallelFor(exec, rows, kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = all_x + row * d;
                  const S* dy = all_dy + row * d;
                  S* dx = args.dx.data<S>() + row * d;
                  const S rho = rstd[row];
                  S dot = 0;
#pragma omp simd reduction(+ : dot)
                  for (int64_t i = 0; i < d; ++i) dot += w(i) * dy[i] * x[i];
                  // mean(u xhat) times the rho of xhat.
                  const S along = dot * rho * rho / S(d);
                  if (args.accumulate_dx) {
                    for (int64_t i = 0; i < d; ++i)
                      dx[i] += rho * (w(i) * dy[i] - along * x[i]);
                  } else {
                    for (int64_t i = 0; i < d; ++i)
                      dx[i] = rho * (w(i) * dy[i] - along * x[i]);
                  }
                }
              });
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNormForwardCpu(const Exec& exec,
                               const RmsNormForwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status RmsNormBackwardCpu(const Exec& exec,
                                const RmsNormBackwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
