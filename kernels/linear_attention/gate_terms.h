#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_

// By what the errors of da_log and ddt_bias are measured in tests. Both are
// sums over all tokens of terms of either sign, which may all but cancel: an
// error that is small beside each piece of the sum, and has nothing to do with
// the other pieces', need not be small beside the sum. It is beside their norm.
// Pieces are the tokens' terms, or sums of 64 of them where those are larger:
// the decays' gradients are sums from a token to its chunk's end, so that their
// errors in a chunk are much alike.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/common/test_tensor.h"

namespace cadre::linear_attention {

// dg/da_log over dg/dx of a gate -exp(a_log) softplus(x), or of a bounded one,
// L sigmoid(exp(a_log) x).
inline double RateOverSlope(double x, bool bounded) {
  if (bounded) return x;
  return x > 20 ? x : std::log1p(std::exp(x)) * (1 + std::exp(-x));
}

struct GateTerms {
  double a_log, dt_bias;  // Euclidean norms of their pieces
};

// For logits [T,H,channels], their gradients and dt_bias [H * channels].
inline GateTerms NormsOfGateTerms(const testing::TestTensor& logits,
                                  const testing::TestTensor& gradients,
                                  const testing::TestTensor& dt_bias,
                                  bool bounded) {
  constexpr int64_t kPiece = 64;
  const int64_t width = dt_bias.size(), tokens = logits.size() / width;
  GateTerms token{}, piece{};  // squares
  std::vector<GateTerms> sums(width);
  for (int64_t t = 0; t < tokens; ++t) {
    const bool ends = (t + 1) % kPiece == 0 || t + 1 == tokens;
    for (int64_t c = 0; c < width; ++c) {
      GateTerms& sum = sums[c];
      const double bias = gradients.Get(t * width + c);
      // A padding row's logits mean nothing.
      const double rate =
          bias == 0
              ? 0
              : bias * RateOverSlope(logits.Get(t * width + c) + dt_bias.Get(c),
                                     bounded);
      token.a_log += rate * rate;
      token.dt_bias += bias * bias;
      sum.a_log += rate;
      sum.dt_bias += bias;
      if (!ends) continue;
      piece.a_log += sum.a_log * sum.a_log;
      piece.dt_bias += sum.dt_bias * sum.dt_bias;
      sum = {};
    }
  }
  return {std::sqrt(std::max(token.a_log, piece.a_log)),
          std::sqrt(std::max(token.dt_bias, piece.dt_bias))};
}

// An error relative to `sum`, as one relative to the larger of that and of
// `terms`.
inline double BesideTerms(double error, const testing::TestTensor& sum,
                          double terms) {
  double norm = 0;
  for (int64_t i = 0; i < sum.size(); ++i) norm += sum.Get(i) * sum.Get(i);
  norm = std::sqrt(norm);
  return norm > 0 ? error * norm / std::max(norm, terms) : error;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GATE_TERMS_H_
