#include <algorithm>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/router/router.h"
#include "kernels/router/router_scores.h"

namespace cadre {

absl::Status RouterAuxAccumulateCpu(const Exec& exec,
                                    const RouterAuxAccumulateArgs& args) {
  return DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_experts = args.logits.dim(1);
    int64_t* const counts = args.statistics.counts.data<int64_t>();
    double* const prob_sum = args.statistics.prob_sum.data<double>();
    std::vector<T> p(num_experts);
    std::vector<char> open(num_experts);
    // One thread: the sums over tokens then have one order.
    for (int64_t t = 0; t < args.logits.dim(0); ++t) {
      if (args.mask.present() && args.mask.data<int32_t>()[t] == 0) continue;
      SoftmaxRow(args.logits.data<T>() + t * num_experts, num_experts,
                 p.data());
      for (int64_t e = 0; e < num_experts; ++e) prob_sum[e] += p[e];
      std::fill(open.begin(), open.end(), 1);
      for (int64_t i = 0; i < args.top_k; ++i)
        ++counts[TakeLargest(p.data(), num_experts, open.data())];
      ++args.statistics.num_rows.data<int64_t>()[0];
    }
    return absl::OkStatus();
  });
}

absl::Status RouterAuxLossCpu(const Exec& exec,
                              const RouterAuxStatistics& statistics,
                              const Tensor& loss) {
  const int64_t num_experts = statistics.counts.dim(0);
  const int64_t num_rows = statistics.num_rows.data<int64_t>()[0];
  double sum = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    sum += static_cast<double>(statistics.counts.data<int64_t>()[e]) *
           statistics.prob_sum.data<double>()[e];
  }
  const double n = static_cast<double>(num_rows);
  loss.data<double>()[0] =
      num_rows == 0 ? 0 : static_cast<double>(num_experts) * sum / (n * n);
  return absl::OkStatus();
}

absl::Status RouterAuxBackwardCpu(const Exec& exec,
                                  const RouterAuxBackwardArgs& args) {
  const int64_t num_rows = args.statistics.num_rows.data<int64_t>()[0];
  if (num_rows == 0) return absl::OkStatus();
  return DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_experts = args.logits.dim(1);
    const double n = static_cast<double>(num_rows);
    const T factor =
        static_cast<T>(args.coefficient * static_cast<double>(num_experts) / n);
    std::vector<T> f(num_experts);
    for (int64_t e = 0; e < num_experts; ++e) {
      f[e] = static_cast<T>(
          static_cast<double>(args.statistics.counts.data<int64_t>()[e]) / n);
    }
    ParallelFor(exec, args.logits.dim(0), 8, [&](int64_t begin, int64_t end) {
      std::vector<T> p(num_experts);
      for (int64_t t = begin; t < end; ++t) {
        if (args.mask.present() && args.mask.data<int32_t>()[t] == 0) continue;
        SoftmaxRow(args.logits.data<T>() + t * num_experts, num_experts,
                   p.data());
        T mean = 0;
        for (int64_t e = 0; e < num_experts; ++e) mean += f[e] * p[e];
        T* const dlogits = args.dlogits.data<T>() + t * num_experts;
        for (int64_t e = 0; e < num_experts; ++e)
          dlogits[e] += factor * p[e] * (f[e] - mean);
      }
    });
    return absl::OkStatus();
  });
}

}  // namespace cadre
