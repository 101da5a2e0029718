#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/common/check.h"

namespace cadre {

absl::Status AdamWCpu(const Exec& exec, const AdamWArgs& args) {
  return DispatchCpu(args.p.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const double t = static_cast<double>(args.step);
    const T decay = static_cast<T>(1 - args.learning_rate * args.weight_decay);
    const T beta1 = static_cast<T>(args.beta1);
    const T beta2 = static_cast<T>(args.beta2);
    const T rest1 = static_cast<T>(1 - args.beta1);
    const T rest2 = static_cast<T>(1 - args.beta2);
    const T rate =
        static_cast<T>(args.learning_rate / (1 - std::pow(args.beta1, t)));
    const T correction = static_cast<T>(1 - std::pow(args.beta2, t));
    const T epsilon = static_cast<T>(args.epsilon);
    const T grad_scale = static_cast<T>(args.grad_scale);
    T* const p = args.p.data<T>();
    T* const m = args.m.data<T>();
    T* const v = args.v.data<T>();
    const T* const grads = args.g.data<T>();
    ParallelFor(
        exec, args.p.num_elements(), 16384, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const T g = grad_scale * grads[i];
            m[i] = beta1 * m[i] + rest1 * g;
            v[i] = beta2 * v[i] + rest2 * (g * g);
            p[i] = p[i] * decay -
                   rate * m[i] / (std::sqrt(v[i] / correction) + epsilon);
          }
        });
    return absl::OkStatus();
  });
}

absl::Status SumOfSquaresCpu(const Exec& exec, const SumOfSquaresArgs& args) {
  constexpr int64_t kPiece = 4096;
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t n = args.x.num_elements();
    const int64_t num_pieces = (n + kPiece - 1) / kPiece;
    const T* const x = args.x.data<T>();
    std::vector<double> sums(num_pieces);
    ParallelFor(exec, num_pieces, 4, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        double sum = 0;
        const int64_t stop = std::min(n, (piece + 1) * kPiece);
        for (int64_t i = piece * kPiece; i < stop; ++i)
          sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        sums[piece] = sum;
      }
    });
    double total = 0;
    for (double sum : sums) total += sum;
    args.sum.data<double>()[0] += total;
    return absl::OkStatus();
  });
}

}  // namespace cadre
