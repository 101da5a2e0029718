#ifndef CADRE_KERNELS_LINEAR_ATTENTION_DECAY_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_DECAY_H_

// Log-decay of linear attention from its logit, with derivatives. Private to
// kernels/{kda,gdn}. Pure functions.

#include <cmath>
#include <optional>

#include "kernels/common/scalar_math.h"

namespace cadre::linear_attention {

// The gate of one head.
template <typename S>
struct LogDecay {
  LogDecay(S a_log, std::optional<double> lower_bound)
      : rate(std::exp(a_log)),
        bounded(lower_bound.has_value()),
        bound(static_cast<S>(lower_bound.value_or(0))) {}

  // bound sigmoid(rate x)  or  -rate softplus(x); never positive.
  S operator()(S x) const {
    return bounded ? bound * Sigmoid(rate * x) : -rate * Softplus(x);
  }
  // d/dx.
  S Slope(S x) const {
    if (!bounded) return -rate * SoftplusGrad(x);
    const S s = Sigmoid(rate * x);
    return bound * s * (1 - s) * rate;
  }
  // d/d a_log.
  S RateSlope(S x) const { return bounded ? Slope(x) * x : (*this)(x); }

  S rate;
  bool bounded;
  S bound;
};

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_DECAY_H_
