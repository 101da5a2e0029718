#include "kernels/layernorm/layernorm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/test_tensor.h"

namespace cadre {
namespace {

using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

TEST(LayerNorm, EqualsTheDefinition) {
  TestTensor x = TestTensor::Of(DType::kF64, {1, 4}, {1, 2, 3, 6});
  TestTensor w = TestTensor::Of(DType::kF64, {4}, {1, 1, 2, -1});
  TestTensor b = TestTensor::Of(DType::kF64, {4}, {0, 5, 0, 1});
  ASSERT_OK(LayerNormForward({}, {.x = x.view(),
                                  .w = w.view(),
                                  .b = b.view(),
                                  .y = x.view(),
                                  .eps = 0.5}));
  const double rho = 1 / std::sqrt(4.0);  // variance 14/4 = 3.5
  EXPECT_NEAR(x.Get(0), -2 * rho, 1e-15);
  EXPECT_NEAR(x.Get(1), -rho + 5, 1e-15);
  EXPECT_NEAR(x.Get(2), 0, 1e-15);
  EXPECT_NEAR(x.Get(3), -3 * rho + 1, 1e-15);
}

TEST(LayerNorm, LargeOffsetLosesNoDigitsInFloat32) {
  TestTensor x = TestTensor::Random(DType::kF32, {65, 33}, 1, 1.0, 1e3);
  TestTensor w = TestTensor::Random(DType::kF32, {33}, 2);
  TestTensor b = TestTensor::Random(DType::kF32, {33}, 3);
  TestTensor y = TestTensor::Zeros(DType::kF32, {65, 33});
  ASSERT_OK(LayerNormForward(
      {}, {.x = x.view(), .w = w.view(), .b = b.view(), .y = y.view()}));
  TestTensor x64 = x.As(DType::kF64), w64 = w.As(DType::kF64);
  TestTensor b64 = b.As(DType::kF64), y64 = y.As(DType::kF64);
  ASSERT_OK(LayerNormForward(
      {},
      {.x = x64.view(), .w = w64.view(), .b = b64.view(), .y = y64.view()}));
  EXPECT_LE(RelativeError(y, y64), 1e-4);
}

TEST(LayerNorm, NoRowsAndMissingBias) {
  TestTensor x = TestTensor::Zeros(DType::kF32, {0, 3});
  TestTensor w = TestTensor::Zeros(DType::kF32, {3});
  EXPECT_OK(LayerNormForward(
      {}, {.x = x.view(), .w = w.view(), .b = w.view(), .y = x.view()}));
  EXPECT_THAT(
      LayerNormForward({}, {.x = x.view(), .w = w.view(), .y = x.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
