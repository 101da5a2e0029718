#include "kernels/l2norm/l2norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

constexpr DType kF64 = DType::kF64;

TEST(L2Norm, EpsilonIsInsideTheRoot) {
  TestTensor x = TestTensor::Of(kF64, {2, 1, 2}, {3e-3, 4e-3, 0, 0});
  TestTensor y = TestTensor::Zeros(kF64, {2, 1, 2});
  ASSERT_OK(L2NormForward({}, {.x = x.view(), .y = y.view()}));
  EXPECT_NEAR(y.Get(0), 3e-3 / std::sqrt(26e-6), 1e-15);
  EXPECT_NEAR(y.Get(1), 4e-3 / std::sqrt(26e-6), 1e-15);
  EXPECT_EQ(y.Get(2), 0);
}

TEST(L2Norm, BackwardMatchesFiniteDifferences) {
  for (int64_t t : {1, 3, 65}) {
    for (int64_t d : {1, 7, 16}) {
      TestTensor x = TestTensor::Random(kF64, {t, 2, d}, 1);
      TestTensor y = TestTensor::Zeros(kF64, {t, 2, d});
      TestTensor dy = TestTensor::Random(kF64, {t, 2, d}, 2);
      TestTensor dx = TestTensor::Zeros(kF64, {t, 2, d});
      // An epsilon that matters, so that leaving it out fails.
      const double eps = 0.3;
      auto loss = [&] {
        EXPECT_OK(
            L2NormForward({}, {.x = x.view(), .y = y.view(), .eps = eps}));
        return Dot(y, dy);
      };
      ASSERT_OK(L2NormBackward(
          {}, {.x = x.view(), .dy = dy.view(), .dx = dx.view(), .eps = eps}));
      ExpectGradients(loss, {{"x", x.view(), dx.view()}});
      // In place.
      TestTensor in_place = dy;
      ASSERT_OK(L2NormBackward({}, {.x = x.view(),
                                    .dy = in_place.view(),
                                    .dx = in_place.view(),
                                    .eps = eps}));
      EXPECT_EQ(RelativeError(in_place, dx), 0);
    }
  }
}

TEST(L2Norm, Float32AgreesWithFloat64OnMassiveInputs) {
  TestTensor x = TestTensor::Random(DType::kF32, {127, 3, 33}, 1, 1e3);
  TestTensor y = TestTensor::Zeros(DType::kF32, {127, 3, 33});
  ASSERT_OK(L2NormForward({}, {.x = x.view(), .y = y.view()}));
  TestTensor x64 = x.As(kF64), y64 = y.As(kF64);
  ASSERT_OK(L2NormForward({}, {.x = x64.view(), .y = y64.view()}));
  EXPECT_LE(RelativeError(y, y64), 1e-6);
}

TEST(L2Norm, EmptyInputsAndBadShapes) {
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{0, 2, 8}, {3, 0, 8}, {3, 2, 0}}) {
    TestTensor x = TestTensor::Zeros(kF64, dims);
    EXPECT_OK(L2NormForward({}, {.x = x.view(), .y = x.view()}));
    EXPECT_OK(
        L2NormBackward({}, {.x = x.view(), .dy = x.view(), .dx = x.view()}));
  }
  TestTensor x = TestTensor::Zeros(kF64, {2, 3});
  TestTensor y = TestTensor::Zeros(kF64, {3, 2});
  EXPECT_THAT(L2NormForward({}, {.x = x.view(), .y = y.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
