#ifndef CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_
#define CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_

// Private to the CPU router: scores of one token and ordered selection.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/router/router.h"

namespace cadre {

// out = softmax(logits) over n; may be in place.
template <typename T>
void SoftmaxRow(const T* logits, int64_t n, T* out) {
  const T largest = *std::max_element(logits, logits + n);
  T sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += out[e] = std::exp(logits[e] - largest);
  for (int64_t e = 0; e < n; ++e) out[e] /= sum;
}

template <typename T>
void RouterScores(RouterOptions::Score score, const T* logits, int64_t n,
                  T* out) {
  if (score == RouterOptions::Score::kSoftmax) {
    SoftmaxRow(logits, n, out);
    return;
  }
  for (int64_t e = 0; e < n; ++e) {
    // Never the exponential of a large positive number.
    const T tail = std::exp(-std::abs(logits[e]));
    out[e] = logits[e] >= 0 ? 1 / (1 + tail) : tail / (1 + tail);
  }
}

// Index of the largest of values[0..n) whose `open` flag is set, the lowest of
// equals; clears the flag. At least one must be set.
template <typename T>
int64_t TakeLargest(const T* values, int64_t n, char* open) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (open[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  open[best] = 0;
  return best;
}

// Marks the experts of the best groups as open, all others as closed.
template <typename T>
void OpenBestGroups(const RouterOptions& options, const T* choice, int64_t n,
                    char* open) {
  if (options.num_groups == 1) {
    std::fill_n(open, n, 1);
    return;
  }
  const int64_t size = n / options.num_groups;
  std::vector<T> scores(options.num_groups);
  for (int64_t g = 0; g < options.num_groups; ++g) {
    const T* const group = choice + g * size;
    T first = group[0], second = -std::numeric_limits<T>::infinity();
    for (int64_t i = 1; i < size; ++i) {
      if (group[i] > first) {
        second = first;
        first = group[i];
      } else if (group[i] > second) {
        second = group[i];
      }
    }
    scores[g] = size > 1 ? first + second : first;
  }
  std::vector<char> open_groups(options.num_groups, 1);
  std::fill_n(open, n, 0);
  for (int64_t i = 0; i < options.topk_groups; ++i) {
    const int64_t g =
        TakeLargest(scores.data(), options.num_groups, open_groups.data());
    std::fill_n(open + g * size, size, 1);
  }
}

}  // namespace cadre

#endif  // CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_
