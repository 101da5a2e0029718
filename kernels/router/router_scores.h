#ifndef CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_
#define CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_

// Private to the CPU router: scores of one token and ordered selection.

#include <algorithm>
#include <cmath>
#include <cstdint>

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

}  // namespace cadre

#endif  // CADRE_KERNELS_ROUTER_ROUTER_SCORES_H_
