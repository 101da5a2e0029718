#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/scalar_math.h"
#include "kernels/common/tensor.h"
#include "kernels/gated_rmsnorm/gate_rows.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

namespace cadre {
namespace {

// Elements worth a piece of their own; each takes an exponential.
constexpr int64_t kGrain = 4096;

template <typename S>
S Activate(GateActivation activation, S gate) {
  return activation == GateActivation::kSilu ? Silu(gate) : Sigmoid(gate);
}

template <typename S>
S ReciprocalRms(const S* x, int64_t d, double eps) {
  S squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / S(d) + S(eps));
}

template <typename S>
absl::Status Forward(const Exec& exec, const GatedRmsNormForwardArgs& args) {
  const int64_t d = LastDim(args.x);
  const GateRows gate_at(args.x, args.gate, args.gate_at);
  const S* const w = args.w.data<S>();
  ParallelFor(exec, NumRows(args.x), kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const S* x = args.x.data<S>() + row * d;
                  const S* gate = args.gate.data<S>() + gate_at(row);
                  S* y = args.y.data<S>() + row * d;
                  const S rho = ReciprocalRms(x, d, args.eps);
                  for (int64_t i = 0; i < d; ++i)
                    y[i] = w[i] * (rho * x[i]) *
                           Activate(args.activation, gate[i]);
                }
              });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const GatedRmsNormBackwardArgs& args) {
  const int64_t rows = NumRows(args.x);
  const int64_t d = LastDim(args.x);
  const GateRows gate_at(args.x, args.gate, args.gate_at);
  const S* const w = args.w.data<S>();
  const S* const all_x = args.x.data<S>();
  const S* const all_gate = args.gate.data<S>();
  const S* const all_dy = args.dy.data<S>();
  std::vector<S> rstd(rows);
  ParallelFor(exec, rows, kGrain / (d + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row)
                  rstd[row] = ReciprocalRms(all_x + row * d, d, args.eps);
              });
  // Before dx and dgate, which may replace dy. Cut by columns, so that each
  // sum runs over the rows in order, in double.
  if (args.dw.present()) {
    S* const dw = args.dw.data<S>();
    ParallelFor(exec, d, kGrain / (rows + 1) + 1,
                [&](int64_t begin, int64_t end) {
                  std::vector<double> sums(end - begin);
                  for (int64_t row = 0; row < rows; ++row) {
                    const S* gate = all_gate + gate_at(row);
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t at = row * d + i;
                      sums[i - begin] += all_dy[at] * rstd[row] * all_x[at] *
                                         Activate(args.activation, gate[i]);
                    }
                  }
                  for (int64_t i = begin; i < end; ++i)
                    dw[i] += static_cast<S>(sums[i - begin]);
                });
  }
  ParallelFor(
      exec, rows, kGrain / (d + 1) + 1, [&](int64_t begin, int64_t end) {
        std::vector<S> u(d);  // gradient of xhat
        for (int64_t row = begin; row < end; ++row) {
          const S* x = all_x + row * d;
          const S* gate = all_gate + gate_at(row);
          const S* dy = all_dy + row * d;
          S* dx = args.dx.data<S>() + row * d;
          S* dgate = args.dgate.data<S>() + gate_at(row);
          const S rho = rstd[row];
          S dot = 0;
          for (int64_t i = 0; i < d; ++i) {
            const S s = Sigmoid(gate[i]);
            const bool silu = args.activation == GateActivation::kSilu;
            const S act = silu ? gate[i] * s : s;
            const S slope = silu ? s * (1 + gate[i] * (1 - s)) : s * (1 - s);
            const S scaled = w[i] * dy[i];
            u[i] = scaled * act;
            dot += u[i] * x[i];
            dgate[i] = scaled * rho * x[i] * slope;
          }
          const S along = dot * rho * rho / S(d);
          for (int64_t i = 0; i < d; ++i) dx[i] = rho * (u[i] - along * x[i]);
        }
      });
  return absl::OkStatus();
}

}  // namespace

absl::Status GatedRmsNormForwardCpu(const Exec& exec,
                                    const GatedRmsNormForwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status GatedRmsNormBackwardCpu(const Exec& exec,
                                     const GatedRmsNormBackwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
