#include "kernels/random_fill/random_fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

std::vector<float> Filled(int64_t n, double deviation, uint64_t seed) {
  std::vector<float> x(n);
  EXPECT_OK(RandomFill({}, {.x = Tensor(x.data(), DType::kF32, {n}),
                            .deviation = deviation,
                            .seed = seed}));
  return x;
}

TEST(RandomFillTest, IsNormal) {
  const std::vector<float> x = Filled(100001, 0.5, 1);
  double sum = 0, squares = 0, fourth = 0;
  for (double v : x) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / n), 0.5, 0.005);
  EXPECT_NEAR(fourth / n / std::pow(squares / n, 2), 3, 0.1);  // kurtosis
}

TEST(RandomFillTest, DependsOnPlaceAndSeedAlone) {
  const std::vector<float> x = Filled(7, 1, 5), longer = Filled(8, 1, 5);
  EXPECT_EQ(x, std::vector<float>(longer.begin(), longer.begin() + 7));
  EXPECT_NE(x, Filled(7, 1, 6));
}

}  // namespace
}  // namespace cadre
