#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_

// By what the errors of da_log and ddt_bias are measured in tests. Both are
// sums over all tokens of terms of either sign, which may all but cancel: an
// error of each term that is small beside it, and has nothing to do with the
// others', need not be small beside the sum. It is beside the terms' norm.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/common/test_tensor.h"

namespace cadre::linear_attention {

// dg/da_log over dg/dx of a gate -exp(a_log) softplus(x), or of a bounded one,
// L sigmoid(exp(a_log) x).
inline double RateOverSlope(double x, bool bounded) {
  if (bounded) return x;
  return x > 20 ? x : std::log1p(std::exp(x)) * (1 + std::exp(-x));
}

struct GateTerms {
  double a_log, dt_bias;  // Euclidean norms of their terms
};

// For logits [T,H,channels], their gradients and dt_bias [H * channels].
inline GateTerms NormsOfGateTerms(const testing::TestTensor& logits,
                                  const testing::TestTensor& gradients,
                                  const testing::TestTensor& dt_bias,
                                  bool bounded) {
  double rate = 0, bias = 0;
  for (int64_t i = 0; i < logits.size(); ++i) {
    const double d = gradients.Get(i);
    if (d == 0) continue;  // padding, whose logits mean nothing
    const double x = logits.Get(i) + dt_bias.Get(i % dt_bias.size());
    const double term = d * RateOverSlope(x, bounded);
    rate += term * term;
    bias += d * d;
  }
  return {std::sqrt(rate), std::sqrt(bias)};
}

// An error relative to `sum`, as one relative to the larger of that and of the
// norm of its terms.
inline double BesideTerms(double error, const testing::TestTensor& sum,
                          double terms) {
  double norm = 0;
  for (int64_t i = 0; i < sum.size(); ++i) norm += sum.Get(i) * sum.Get(i);
  norm = std::sqrt(norm);
  return norm > 0 ? error * norm / std::max(norm, terms) : error;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_
