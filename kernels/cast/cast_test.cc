#include "kernels/cast/cast.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

TEST(CastTest, RoundsToTheNarrowerType) {
  std::vector<double> from = {1.0, 0.1, -1e300};
  std::vector<float> to(3);
  ASSERT_OK(Cast({}, Tensor(from.data(), DType::kF64, {3}),
                 Tensor(to.data(), DType::kF32, {3})));
  EXPECT_EQ(to[0], 1.0f);
  EXPECT_EQ(to[1], 0.1f);
  EXPECT_LT(to[2], -3e38f);
}

TEST(CastTest, RefusesAnotherNumberOfElements) {
  std::vector<float> a(3), b(2);
  EXPECT_FALSE(Cast({}, Tensor(a.data(), DType::kF32, {3}),
                    Tensor(b.data(), DType::kF32, {2}))
                   .ok());
}

TEST(CastTest, TakesEmptyTensors) {
  EXPECT_OK(Cast({}, Tensor(nullptr, DType::kF32, {0, 4}),
                 Tensor(nullptr, DType::kF64, {0})));
}

}  // namespace
}  // namespace cadre
