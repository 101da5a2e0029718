#include "kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

TEST(AdamWTest, FollowsTheFormulaOverSeveralSteps) {
  constexpr double kRate = 1e-2, kDecay = 0.1, kScale = 0.5, kEpsilon = 1e-8;
  TestTensor p = TestTensor::Of(DType::kF64, {3}, {1, -2, 0.5});
  TestTensor m = TestTensor::Zeros(DType::kF64, {3});
  TestTensor v = TestTensor::Zeros(DType::kF64, {3});
  double expected[3] = {1, -2, 0.5}, first[3] = {}, second[3] = {};
  for (int step = 1; step <= 5; ++step) {
    TestTensor g = TestTensor::Random(DType::kF64, {3}, step);
    ASSERT_OK(AdamW({}, {.p = p.view(),
                         .m = m.view(),
                         .v = v.view(),
                         .g = g.view(),
                         .learning_rate = kRate,
                         .weight_decay = kDecay,
                         .step = step,
                         .grad_scale = kScale}));
    for (int i = 0; i < 3; ++i) {
      const double grad = kScale * g.Get(i);
      expected[i] *= 1 - kRate * kDecay;
      first[i] = 0.9 * first[i] + 0.1 * grad;
      second[i] = 0.95 * second[i] + 0.05 * grad * grad;
      expected[i] -=
          kRate / (1 - std::pow(0.9, step)) * first[i] /
          (std::sqrt(second[i] / (1 - std::pow(0.95, step))) + kEpsilon);
      EXPECT_NEAR(p.Get(i), expected[i], 1e-14) << step;
      EXPECT_NEAR(m.Get(i), first[i], 1e-15);
      EXPECT_NEAR(v.Get(i), second[i], 1e-15);
    }
  }
}

TEST(AdamWTest, TheFirstStepMovesByTheRateWhateverTheGradient) {
  for (double grad : {1e-4, 1.0, 1e6}) {
    TestTensor p = TestTensor::Zeros(DType::kF32, {1});
    TestTensor m = p, v = p;
    TestTensor g = TestTensor::Full(DType::kF32, {1}, grad);
    ASSERT_OK(AdamW({}, {.p = p.view(),
                         .m = m.view(),
                         .v = v.view(),
                         .g = g.view(),
                         .learning_rate = 0.25}));
    EXPECT_NEAR(p.Get(0), -0.25, 1e-4);
  }
}

TEST(AdamWTest, CuttingTheParameterChangesNoBit) {
  constexpr int64_t kSize = 40000, kCut = 12345;
  ThreadPool pool(2);
  TestTensor whole = TestTensor::Random(DType::kF32, {kSize}, 1);
  TestTensor m = TestTensor::Random(DType::kF32, {kSize}, 2);
  TestTensor v = TestTensor::Full(DType::kF32, {kSize}, 0.5);
  TestTensor g = TestTensor::Random(DType::kF32, {kSize}, 3);
  TestTensor parts = whole, m2 = m, v2 = v;
  AdamWArgs args = {.p = whole.view(),
                    .m = m.view(),
                    .v = v.view(),
                    .g = g.view(),
                    .learning_rate = 1e-3,
                    .weight_decay = 0.01,
                    .step = 7};
  ASSERT_OK(AdamW({.pool = &pool}, args));
  for (auto [begin, end] : {std::pair{int64_t{0}, kCut}, {kCut, kSize}}) {
    args.p = parts.view().Rows(begin, end);
    args.m = m2.view().Rows(begin, end);
    args.v = v2.view().Rows(begin, end);
    args.g = g.view().Rows(begin, end);
    ASSERT_OK(AdamW({}, args));
  }
  for (int64_t i = 0; i < kSize; ++i) ASSERT_EQ(whole.Get(i), parts.Get(i));
}

TEST(AdamWTest, RefusesStepZero) {
  TestTensor p = TestTensor::Zeros(DType::kF32, {1});
  EXPECT_THAT(AdamW({}, {.p = p.view(),
                         .m = p.view(),
                         .v = p.view(),
                         .g = p.view(),
                         .step = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SumOfSquaresTest, AddsInFixedPiecesWhateverTheThreads) {
  ThreadPool pool(2);
  TestTensor x = TestTensor::Random(DType::kF32, {100, 333}, 1);
  TestTensor a = TestTensor::Full(DType::kF64, {1}, 2);
  TestTensor b = a;
  ASSERT_OK(SumOfSquares({.pool = &pool}, {.x = x.view(), .sum = a.view()}));
  ASSERT_OK(SumOfSquares({}, {.x = x.view(), .sum = b.view()}));
  EXPECT_EQ(a.Get(0), b.Get(0));
  EXPECT_NEAR(a.Get(0), 2 + Dot(x, x), 1e-7);
  TestTensor none = TestTensor::Zeros(DType::kF32, {0});
  ASSERT_OK(SumOfSquares({}, {.x = none.view(), .sum = b.view()}));
  EXPECT_EQ(a.Get(0), b.Get(0));
}

}  // namespace
}  // namespace cadre
