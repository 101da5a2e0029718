#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/cross_entropy/cross_entropy.h"

namespace cadre {

absl::Status CrossEntropyCpu(const Exec& exec, const CrossEntropyArgs& args) {
  return DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_tokens = args.logits.dim(0);
    const int64_t vocabulary = args.logits.dim(1);
    const int32_t* const targets = args.targets.data<int32_t>();
    T* const logits = args.logits.data<T>();
    std::vector<double> losses(num_tokens);
    ParallelFor(exec, num_tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* const row = logits + t * vocabulary;
        if (targets[t] == kIgnoreTarget) {
          if (args.gradient) std::fill_n(row, vocabulary, T{0});
          continue;
        }
        const T largest = *std::max_element(row, row + vocabulary);
        const T at_target = row[targets[t]];
        double sum = 0;
        for (int64_t e = 0; e < vocabulary; ++e) {
          const T exponential = std::exp(row[e] - largest);
          sum += static_cast<double>(exponential);
          if (args.gradient) row[e] = exponential;
        }
        losses[t] = std::log(sum) + (static_cast<double>(largest) -
                                     static_cast<double>(at_target));
        if (!args.gradient) continue;
        const T factor = static_cast<T>(args.inv_count / sum);
        for (int64_t e = 0; e < vocabulary; ++e) row[e] *= factor;
        row[targets[t]] -= static_cast<T>(args.inv_count);
      }
    });
    double total = 0;
    for (double loss : losses) total += loss;
    args.loss_sum.data<double>()[0] += total;
    return absl::OkStatus();
  });
}

}  // namespace cadre
