#include <algorithm>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/router/router.h"
#include "kernels/router/router_scores.h"

namespace cadre {
namespace {

constexpr int64_t kTokenGrain = 8;

template <typename T>
void ForwardToken(const RouterForwardArgs& args, const T* logits, int32_t* ids,
                  T* weights, std::vector<T>& scores, std::vector<T>& choice,
                  std::vector<char>& open) {
  const RouterOptions& options = args.options;
  const int64_t n = args.logits.dim(1);
  const int64_t top_k = args.ids.dim(1);
  RouterScores(options.score, logits, n, scores.data());
  choice = scores;
  if (args.correction_bias.present()) {
    const T* const bias = args.correction_bias.data<T>();
    for (int64_t e = 0; e < n; ++e) choice[e] += bias[e];
  }
  OpenBestGroups(options, choice.data(), n, open.data());
  T sum = 0;
  for (int64_t i = 0; i < top_k; ++i) {
    if (!args.ids_given) {
      ids[i] = static_cast<int32_t>(TakeLargest(choice.data(), n, open.data()));
    }
    const int32_t e = ids[i];
    weights[i] = scores[e];
    sum += scores[e];
  }
  const T scaling = static_cast<T>(options.scaling);
  const T total = sum + static_cast<T>(options.renormalize_eps);
  for (int64_t i = 0; i < top_k; ++i) {
    if (options.renormalize) weights[i] /= total;
    weights[i] *= scaling;
  }
}

// Adds to dlogits, which the caller has cleared unless it accumulates.
template <typename T>
void BackwardToken(const RouterBackwardArgs& args, const T* logits,
                   const int32_t* ids, const T* dweights, T* dlogits,
                   std::vector<T>& scores, std::vector<T>& dscores) {
  const RouterOptions& options = args.options;
  const int64_t n = args.logits.dim(1);
  const int64_t top_k = args.ids.dim(1);
  const T scaling = static_cast<T>(options.scaling);
  RouterScores(options.score, logits, n, scores.data());
  T total = static_cast<T>(options.renormalize_eps);
  T weighted = 0;  // sum of dw s over the selected
  for (int64_t i = 0; i < top_k; ++i) {
    total += scores[ids[i]];
    weighted += dweights[i] * scores[ids[i]];
  }
  const bool softmax = options.score == RouterOptions::Score::kSoftmax;
  if (softmax && options.renormalize && options.renormalize_eps == 0) {
    for (int64_t i = 0; i < top_k; ++i) {
      const T weight = scores[ids[i]] / total;
      dlogits[ids[i]] += scaling * weight * (dweights[i] - weighted / total);
    }
    return;
  }
  T inner = 0;  // sum of ds s over the selected
  for (int64_t i = 0; i < top_k; ++i) {
    dscores[i] = options.renormalize
                     ? scaling * (dweights[i] - weighted / total) / total
                     : scaling * dweights[i];
    inner += dscores[i] * scores[ids[i]];
  }
  for (int64_t i = 0; i < top_k; ++i) {
    const T s = scores[ids[i]];
    dlogits[ids[i]] += dscores[i] * s * (softmax ? T{1} : 1 - s);
  }
  if (!softmax) return;
  for (int64_t e = 0; e < n; ++e) dlogits[e] -= scores[e] * inner;
}

}  // namespace

absl::Status RouterForwardCpu(const Exec& exec, const RouterForwardArgs& args) {
  const int64_t num_tokens = args.logits.dim(0);
  const int64_t num_experts = args.logits.dim(1);
  const int64_t top_k = args.ids.dim(1);
  int32_t* const ids = args.ids.data<int32_t>();
  const int32_t* const mask =
      args.mask.present() ? args.mask.data<int32_t>() : nullptr;
  absl::Status status = DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const T* const logits = args.logits.data<T>();
    T* const weights = args.weights.data<T>();
    ParallelFor(exec, num_tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
      std::vector<T> scores(num_experts), choice(num_experts);
      std::vector<char> open(num_experts);
      for (int64_t t = begin; t < end; ++t) {
        if (mask != nullptr && mask[t] == 0) {
          std::fill_n(ids + t * top_k, top_k, -1);
          std::fill_n(weights + t * top_k, top_k, T{0});
          continue;
        }
        ForwardToken(args, logits + t * num_experts, ids + t * top_k,
                     weights + t * top_k, scores, choice, open);
      }
    });
    return absl::OkStatus();
  });
  if (status.ok() && args.counts.present()) {
    int64_t* const counts = args.counts.data<int64_t>();
    std::fill_n(counts, num_experts, 0);
    for (int64_t i = 0; i < num_tokens * top_k; ++i) {
      if (ids[i] >= 0) ++counts[ids[i]];
    }
  }
  return status;
}

absl::Status RouterBackwardCpu(const Exec& exec,
                               const RouterBackwardArgs& args) {
  return DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_experts = args.logits.dim(1);
    const int64_t top_k = args.ids.dim(1);
    const T* const logits = args.logits.data<T>();
    const int32_t* const ids = args.ids.data<int32_t>();
    const T* const dweights = args.dweights.data<T>();
    T* const dlogits = args.dlogits.data<T>();
    ParallelFor(
        exec, args.logits.dim(0), kTokenGrain, [&](int64_t begin, int64_t end) {
          std::vector<T> scores(num_experts), dscores(top_k);
          for (int64_t t = begin; t < end; ++t) {
            T* const row = dlogits + t * num_experts;
            if (!args.accumulate) std::fill_n(row, num_experts, T{0});
            if (ids[t * top_k] < 0) continue;
            BackwardToken(args, logits + t * num_experts, ids + t * top_k,
                          dweights + t * top_k, row, scores, dscores);
          }
        });
    return absl::OkStatus();
  });
}

}  // namespace cadre
