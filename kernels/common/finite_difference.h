#ifndef CADRE_KERNELS_COMMON_FINITE_DIFFERENCE_H_
#define CADRE_KERNELS_COMMON_FINITE_DIFFERENCE_H_

// Checks analytic gradients against central differences along random
// directions, in float64. Test-only; not thread-safe.
//
//   auto loss = [&] { EXPECT_OK(Forward(...)); return Dot(y, dy); };
//   EXPECT_OK(Backward(...));               // fills dx, dw
//   ExpectGradients(loss, {{"x", x.view(), dx.view()},
//                          {"w", w.view(), dw.view()}});

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/tensor.h"

namespace cadre::testing {

struct GradientCheck {
  std::string name;
  Tensor value;     // f64; what the loss reads; restored afterwards
  Tensor gradient;  // f64; d loss / d value
};

struct FiniteDifferenceOptions {
  int directions = 4;
  // Length of the displacement. The stencil has fourth order, so its error is
  // of the size step^4 and may be made small without losing digits.
  double step = 1e-3;
  double tolerance = 1e-6;
  uint64_t seed = 1;
  // Called after each displacement to tell whether the loss is smooth there
  // (false: a selection or a clamp changed, draw another direction).
  std::function<bool()> smooth;
};

inline void ExpectGradients(const std::function<double()>& loss,
                            const std::vector<GradientCheck>& checks,
                            const FiniteDifferenceOptions& options = {}) {
  std::mt19937_64 bits(options.seed);
  std::normal_distribution<double> normal;
  for (const GradientCheck& check : checks) {
    const int64_t n = check.value.num_elements();
    ASSERT_EQ(check.gradient.num_elements(), n) << check.name;
    if (n == 0) continue;
    double* const value = check.value.data<double>();
    const double* const gradient = check.gradient.data<double>();
    const std::vector<double> saved(value, value + n);
    double norm = 0;
    for (int64_t i = 0; i < n; ++i) norm += gradient[i] * gradient[i];
    norm = std::sqrt(norm);
    ASSERT_TRUE(std::isfinite(norm)) << check.name;

    int accepted = 0;
    for (int draw = 0;
         accepted < options.directions && draw < 10 * options.directions;
         ++draw) {
      std::vector<double> direction(n);
      double length = 0;
      for (double& d : direction) {
        d = normal(bits);
        length += d * d;
      }
      length = std::sqrt(length);
      double analytic = 0;
      for (int64_t i = 0; i < n; ++i) {
        direction[i] /= length;
        analytic += gradient[i] * direction[i];
      }
      bool smooth = true;
      auto at = [&](double displacement) {
        for (int64_t i = 0; i < n; ++i)
          value[i] = saved[i] + displacement * direction[i];
        const double result = loss();
        if (options.smooth && !options.smooth()) smooth = false;
        return result;
      };
      const double h = options.step;
      const double near = at(h) - at(-h);
      const double far = at(2 * h) - at(-2 * h);
      std::copy(saved.begin(), saved.end(), value);
      if (!smooth) continue;
      ++accepted;
      const double numeric = (8 * near - far) / (12 * h);
      // A direction may happen to be nearly orthogonal to the gradient; then
      // the typical size of the product is the yardstick.
      const double scale =
          std::max({std::abs(numeric), std::abs(analytic),
                    0.1 * norm / std::sqrt(static_cast<double>(n))});
      EXPECT_LE(std::abs(numeric - analytic), options.tolerance * scale + 1e-14)
          << check.name << ", direction " << draw << ": numeric " << numeric
          << ", analytic " << analytic;
    }
    EXPECT_EQ(accepted, options.directions)
        << check.name << ": too few smooth directions";
    loss();  // outputs match the restored values again
  }
}

}  // namespace cadre::testing

#endif  // CADRE_KERNELS_COMMON_FINITE_DIFFERENCE_H_
