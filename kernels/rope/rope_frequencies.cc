#include "kernels/rope/rope_frequencies.h"

#include <algorithm>
#include <cmath>

namespace cadre {
namespace {

constexpr double kPi = 3.14159265358979323846;

double InverseFrequency(int64_t i, int64_t dim, double theta) {
  return std::pow(theta,
                  -2.0 * static_cast<double>(i) / static_cast<double>(dim));
}

}  // namespace

std::vector<float> RopeInverseFrequencies(int64_t dim, double theta) {
  std::vector<float> out(dim / 2);
  for (int64_t i = 0; i < dim / 2; ++i)
    out[i] = static_cast<float>(InverseFrequency(i, dim, theta));
  return out;
}

std::vector<float> YarnInverseFrequencies(int64_t dim, double theta,
                                          const YarnNumbers& yarn) {
  const double width = static_cast<double>(dim);
  // Index of the frequency that turns `rotations` times in the original length.
  auto index_of = [&](double rotations) {
    return width *
           std::log(yarn.original_max_positions / (2 * kPi * rotations)) /
           (2 * std::log(theta));
  };
  double low = index_of(yarn.beta_fast);
  double high = index_of(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  std::vector<float> out(dim / 2);
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double inverse = InverseFrequency(i, dim, theta);
    const double ramp =
        std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out[i] =
        static_cast<float>(inverse / yarn.factor * ramp + inverse * (1 - ramp));
  }
  return out;
}

double YarnMagnitude(double factor, double mu) {
  return factor > 1 ? 0.1 * mu * std::log(factor) + 1 : 1.0;
}

}  // namespace cadre
