#include "kernels/rmsnorm/rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

constexpr DType kF64 = DType::kF64;

TEST(RmsNorm, EqualsTheDefinition) {
  TestTensor x = TestTensor::Of(kF64, {2, 2}, {3, 4, 0, 0});
  TestTensor w = TestTensor::Of(kF64, {2}, {2, -1});
  TestTensor y = TestTensor::Zeros(kF64, {2, 2});
  TestTensor rstd = TestTensor::Zeros(kF64, {2});
  ASSERT_OK(RmsNormForward({}, {.x = x.view(),
                                .w = w.view(),
                                .y = y.view(),
                                .rstd = rstd.view(),
                                .eps = 0.5}));
  const double rho = 1 / std::sqrt(13.0);
  EXPECT_NEAR(rstd.Get(0), rho, 1e-15);
  EXPECT_NEAR(y.Get(0), 6 * rho, 1e-15);
  EXPECT_NEAR(y.Get(1), -4 * rho, 1e-15);
  EXPECT_EQ(y.Get(2), 0);
  ASSERT_OK(RmsNormForward({}, {.x = x.view(),
                                .w = w.view(),
                                .y = y.view(),
                                .eps = 0.5,
                                .unit_offset = true}));
  EXPECT_NEAR(y.Get(0), 9 * rho, 1e-15);
  EXPECT_NEAR(y.Get(1), 0, 1e-15);
  // No weight, in place.
  ASSERT_OK(RmsNormForward({}, {.x = x.view(), .y = x.view(), .eps = 0.5}));
  EXPECT_NEAR(x.Get(1), 4 * rho, 1e-15);
}

TEST(RmsNorm, BackwardMatchesFiniteDifferences) {
  for (int64_t rows : {1, 3, 16, 65}) {
    for (int64_t d : {1, 5, 48}) {
      for (bool unit_offset : {false, true}) {
        for (bool weight : {false, true}) {
          TestTensor x = TestTensor::Random(kF64, {rows, d}, 1);
          TestTensor w = TestTensor::Random(kF64, {d}, 2, 0.3, 1);
          TestTensor y = TestTensor::Zeros(kF64, {rows, d});
          TestTensor rstd = TestTensor::Zeros(kF64, {rows});
          TestTensor dy = TestTensor::Random(kF64, {rows, d}, 3);
          TestTensor dx = TestTensor::Zeros(kF64, {rows, d});
          TestTensor dw = TestTensor::Zeros(kF64, {d});
          const Tensor w_view = weight ? w.view() : Tensor();
          auto loss = [&] {
            EXPECT_OK(RmsNormForward({}, {.x = x.view(),
                                          .w = w_view,
                                          .y = y.view(),
                                          .rstd = rstd.view(),
                                          .eps = 0.1,
                                          .unit_offset = unit_offset}));
            return Dot(y, dy);
          };
          loss();
          ASSERT_OK(RmsNormBackward({}, {.x = x.view(),
                                         .w = w_view,
                                         .rstd = rstd.view(),
                                         .dy = dy.view(),
                                         .dx = dx.view(),
                                         .dw = weight ? dw.view() : Tensor(),
                                         .unit_offset = unit_offset}));
          ExpectGradients(loss, {{"x", x.view(), dx.view()}});
          if (weight) ExpectGradients(loss, {{"w", w.view(), dw.view()}});
        }
      }
    }
  }
}

TEST(RmsNorm, BackwardAccumulatesAndWorksInPlace) {
  ThreadPool pool(3);
  const Exec exec{.pool = &pool};
  const int64_t rows = 127, h = 3, d = 17;  // per-head norm
  TestTensor x = TestTensor::Random(kF64, {rows, h, d}, 1);
  TestTensor w = TestTensor::Random(kF64, {d}, 2);
  TestTensor rstd = TestTensor::Zeros(kF64, {rows, h});
  TestTensor y = TestTensor::Zeros(kF64, {rows, h, d});
  TestTensor dy = TestTensor::Random(kF64, {rows, h, d}, 3);
  ASSERT_OK(RmsNormForward(
      exec,
      {.x = x.view(), .w = w.view(), .y = y.view(), .rstd = rstd.view()}));
  TestTensor dx = TestTensor::Zeros(kF64, {rows, h, d});
  TestTensor dw = TestTensor::Full(kF64, {d}, 1);
  RmsNormBackwardArgs args{.x = x.view(),
                           .w = w.view(),
                           .rstd = rstd.view(),
                           .dy = dy.view(),
                           .dx = dx.view(),
                           .dw = dw.view()};
  ASSERT_OK(RmsNormBackward(exec, args));
  TestTensor sum = TestTensor::Full(kF64, {rows, h, d}, 2);
  TestTensor dw_twice = dw;
  args.dx = sum.view();
  args.dw = dw_twice.view();
  args.accumulate_dx = true;
  ASSERT_OK(RmsNormBackward(exec, args));
  for (int64_t i = 0; i < dx.size(); ++i)
    ASSERT_NEAR(sum.Get(i), dx.Get(i) + 2, 1e-13);
  for (int64_t i = 0; i < d; ++i)
    ASSERT_NEAR(dw_twice.Get(i), 2 * dw.Get(i) - 1, 1e-12);
  TestTensor in_place = dy;
  args.dy = args.dx = in_place.view();
  args.accumulate_dx = false;
  ASSERT_OK(RmsNormBackward(exec, args));
  EXPECT_EQ(RelativeError(in_place, dx), 0);
}

TEST(RmsNorm, Float32AgreesWithFloat64OnMassiveInputs) {
  TestTensor x = TestTensor::Random(DType::kF32, {33, 129}, 1, 1e3);
  TestTensor w = TestTensor::Random(DType::kF32, {129}, 2);
  TestTensor y = TestTensor::Zeros(DType::kF32, {33, 129});
  ASSERT_OK(RmsNormForward({}, {.x = x.view(), .w = w.view(), .y = y.view()}));
  TestTensor x64 = x.As(kF64), w64 = w.As(kF64), y64 = y.As(kF64);
  ASSERT_OK(
      RmsNormForward({}, {.x = x64.view(), .w = w64.view(), .y = y64.view()}));
  EXPECT_LE(RelativeError(y, y64), 1e-6);
}

TEST(RmsNorm, NoRowsAndBadShapes) {
  TestTensor x = TestTensor::Zeros(kF64, {0, 8});
  TestTensor w = TestTensor::Zeros(kF64, {8});
  TestTensor rstd = TestTensor::Zeros(kF64, {0});
  EXPECT_OK(RmsNormForward(
      {}, {.x = x.view(), .w = w.view(), .y = x.view(), .rstd = rstd.view()}));
  TestTensor dw = TestTensor::Full(kF64, {8}, 3);
  EXPECT_OK(RmsNormBackward({}, {.x = x.view(),
                                 .w = w.view(),
                                 .rstd = rstd.view(),
                                 .dy = x.view(),
                                 .dx = x.view(),
                                 .dw = dw.view()}));
  EXPECT_EQ(dw.Get(7), 3);
  TestTensor x5 = TestTensor::Zeros(kF64, {2, 5});
  EXPECT_THAT(
      RmsNormForward({}, {.x = x5.view(), .w = w.view(), .y = x5.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("w is f64[8], expected f64[5]")));
  EXPECT_THAT(
      RmsNormBackward({}, {.x = x5.view(), .dy = x5.view(), .dx = x5.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rstd")));
}

}  // namespace
}  // namespace cadre
