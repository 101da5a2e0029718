#ifndef CADRE_KERNELS_ROPE_ROPE_FREQUENCIES_H_
#define CADRE_KERNELS_ROPE_ROPE_FREQUENCIES_H_

// Inverse frequencies of rotary position embedding. Pure functions.

#include <cstdint>
#include <vector>

namespace cadre {

// Yarn's numbers, already resolved from a config.
struct YarnNumbers {
  double factor = 1.0;                  // f >= 1
  double original_max_positions = 0.0;  // L0 > 0
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // round the ramp's ends outwards to whole indices
};

// theta^(-2i/dim) for i < dim/2, computed in double and rounded to float32.
// dim is even, theta > 0.
std::vector<float> RopeInverseFrequencies(int64_t dim, double theta);

// The same, blended per frequency between itself (fast) and itself / factor
// (slow):
//   end(rho) = dim ln(L0 / (2 pi rho)) / (2 ln theta)
//   lo = max(floor(end(beta_fast)), 0) ;  hi = min(ceil(end(beta_slow)), dim-1)
//   ramp_i = clip((i - lo) / (hi - lo), 0, 1), hi += 0.001 where lo == hi
//   inv_i <- inv_i / factor * ramp_i + inv_i * (1 - ramp_i)
std::vector<float> YarnInverseFrequencies(int64_t dim, double theta,
                                          const YarnNumbers& yarn);

// 0.1 mu ln(factor) + 1 for factor > 1, else 1: yarn's magnitude scale.
double YarnMagnitude(double factor, double mu);

}  // namespace cadre

#endif  // CADRE_KERNELS_ROPE_ROPE_FREQUENCIES_H_
