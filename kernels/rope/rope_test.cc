#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/rope/rope_frequencies.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

void ExpectClose(double actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-5 * expected);
}

TEST(RopeFrequenciesTest, DefaultFallsGeometrically) {
  const std::vector<float> inv = RopeInverseFrequencies(8, 1e4);
  ASSERT_EQ(inv.size(), 4u);
  ExpectClose(inv[0], 1);
  ExpectClose(inv[1], 0.1);
  ExpectClose(inv[3], 1e-3);
}

TEST(RopeFrequenciesTest, YarnHasTheHandValuesOfTheDeepSeekShape) {
  const std::vector<float> inv = YarnInverseFrequencies(
      64, 1e4, {.factor = 40, .original_max_positions = 4096});
  ExpectClose(inv[0], 1);
  ExpectClose(inv[10], 0.0562341);
  ExpectClose(inv[15], 0.00833451);
  ExpectClose(inv[23], 3.33380e-5);
  ExpectClose(inv[31], 3.33380e-6);
  const double magnitude = YarnMagnitude(40, 1);
  EXPECT_NEAR(magnitude * magnitude / std::sqrt(192.0), 0.1352338, 5e-8);
}

TEST(RopeFrequenciesTest, YarnHasTheHandValuesOfASmallShape) {
  const std::vector<float> inv = YarnInverseFrequencies(
      8, 1e4, {.factor = 4, .original_max_positions = 64});
  ExpectClose(inv[0], 1);
  ExpectClose(inv[1], 0.0625);
  ExpectClose(inv[2], 0.0025);
  ExpectClose(inv[3], 0.00025);
  EXPECT_NEAR(YarnMagnitude(4, 1) / YarnMagnitude(4, 0.7), 1.0379100, 5e-8);
  EXPECT_NEAR(std::pow(YarnMagnitude(4, 0.7), 2) / std::sqrt(24.0), 0.2456630,
              5e-8);
  EXPECT_EQ(YarnMagnitude(1, 5), 1);
}

TEST(RopeFrequenciesTest, WithoutTruncationTheRampKeepsItsFractions) {
  const YarnNumbers yarn = {
      .factor = 40, .original_max_positions = 4096, .truncate = false};
  const std::vector<float> inv = YarnInverseFrequencies(64, 1e4, yarn);
  const double unit = 64 / (2 * std::log(1e4));
  const double low = unit * std::log(4096 / (2 * M_PI * 32));
  const double high = unit * std::log(4096 / (2 * M_PI));
  for (int64_t i = 0; i < 32; ++i) {
    const double ramp = std::min(std::max((i - low) / (high - low), 0.0), 1.0);
    ExpectClose(inv[i], std::pow(1e4, -i / 32.0) * (ramp / 40 + (1 - ramp)));
  }
}

TEST(RopeFrequenciesTest, EqualRampEndsGiveAStep) {
  const std::vector<float> inv =
      YarnInverseFrequencies(8, 1e4,
                             {.factor = 2,
                              .original_max_positions = 64,
                              .beta_fast = 4,
                              .beta_slow = 4,
                              .truncate = false});
  for (int64_t i = 0; i < 4; ++i) {
    const double plain = std::pow(1e4, -i / 4.0);
    ExpectClose(inv[i], inv[i] < 0.75 * plain ? plain / 2 : plain);
  }
}

struct Rope {
  Rope(bool interleaved, DType dtype)
      : x(TestTensor::Random(dtype, {4, 3, 11}, 1)), interleaved(interleaved) {
    const std::vector<float> inv = RopeInverseFrequencies(6, 100);
    inv_freq = TestTensor::Of(DType::kF32, {3}, {inv.begin(), inv.end()});
  }
  RopeArgs Args(TestTensor& rows) {
    return {.x = rows.view(),
            .positions = positions.view(),
            .inv_freq = inv_freq.view(),
            .offset = 2,
            .interleaved = interleaved,
            .attention_factor = 1.25};
  }
  TestTensor x;
  bool interleaved;
  TestTensor positions = TestTensor::Table({0, 1, 2, 0});
  TestTensor inv_freq = TestTensor::Table({});
};

TEST(RopeTest, RotatesPairsAndWritesHalfSplit) {
  for (bool interleaved : {false, true}) {
    Rope r(interleaved, DType::kF64);
    TestTensor y = r.x;
    ASSERT_OK(RopeForward({}, r.Args(y)));
    for (int64_t row = 0; row < 12; ++row) {
      for (int64_t i = 0; i < 11; ++i) {
        if (i >= 2 && i < 8) continue;
        EXPECT_EQ(y.Get(row * 11 + i), r.x.Get(row * 11 + i));
      }
      for (int64_t i = 0; i < 3; ++i) {
        const int64_t at = row * 11 + 2;
        const double angle =
            static_cast<float>(static_cast<float>(r.positions.Get(row / 3)) *
                               static_cast<float>(r.inv_freq.Get(i)));
        const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
        const double a = r.x.Get(at + (interleaved ? 2 * i : i));
        const double b = r.x.Get(at + (interleaved ? 2 * i + 1 : i + 3));
        EXPECT_NEAR(y.Get(at + i), a * c - b * s, 1e-14);
        EXPECT_NEAR(y.Get(at + i + 3), b * c + a * s, 1e-14);
      }
    }
  }
}

TEST(RopeTest, BackwardMatchesFiniteDifferences) {
  for (bool interleaved : {false, true}) {
    Rope r(interleaved, DType::kF64);
    TestTensor dy = TestTensor::Random(DType::kF64, {4, 3, 11}, 2);
    TestTensor dx = dy;
    ASSERT_OK(RopeBackward({}, r.Args(dx)));
    ExpectGradients(
        [&] {
          TestTensor y = r.x;
          EXPECT_OK(RopeForward({}, r.Args(y)));
          return Dot(y, dy);
        },
        {{"x", r.x.view(), dx.view()}});
  }
}

TEST(RopeTest, LargePositionsUseTheFloat32Angle) {
  TestTensor x = TestTensor::Of(DType::kF32, {1, 1, 2}, {1, 0});
  TestTensor positions = TestTensor::Table({1000003});
  const float inv = 0.3f;
  TestTensor inv_freq = TestTensor::Full(DType::kF32, {1}, inv);
  ASSERT_OK(RopeForward({}, {.x = x.view(),
                             .positions = positions.view(),
                             .inv_freq = inv_freq.view()}));
  const double angle = static_cast<float>(1000003.0f * inv);
  EXPECT_NEAR(x.Get(0), std::cos(angle), 1e-7);
  EXPECT_NEAR(x.Get(1), std::sin(angle), 1e-7);
}

// At the end of a million-token document: float32 and float64 rows turn by the
// same angle, which is off from the unrounded one by its own rounding only
// (relative 2^-23: product and position-free frequency).
TEST(RopeTest, AMillionTokensInEveryFrequencyKeepsItsRounding) {
  constexpr int64_t kWidth = 64;
  const std::vector<float> inv = RopeInverseFrequencies(kWidth, 1e4);
  TestTensor inv_freq =
      TestTensor::Of(DType::kF32, {kWidth / 2}, {inv.begin(), inv.end()});
  const std::vector<int32_t> at = {999'983, 1'000'000, 1'048'575};
  TestTensor positions = TestTensor::Table(at);
  const TestTensor x = TestTensor::Random(DType::kF32, {3, 1, kWidth}, 1);
  TestTensor single = x, full = x.As(DType::kF64);
  for (TestTensor* rows : {&single, &full}) {
    ASSERT_OK(RopeForward({}, {.x = rows->view(),
                               .positions = positions.view(),
                               .inv_freq = inv_freq.view()}));
  }
  EXPECT_LT(RelativeError(single, full), 1e-7);
  for (size_t t = 0; t < at.size(); ++t) {
    for (int64_t i = 0; i < kWidth / 2; ++i) {
      const double exact = at[t] * std::pow(1e4, -2.0 * i / kWidth);
      const double a = x.Get(t * kWidth + i);
      const double b = x.Get(t * kWidth + i + kWidth / 2);
      EXPECT_NEAR(full.Get(t * kWidth + i),
                  a * std::cos(exact) - b * std::sin(exact),
                  std::hypot(a, b) * (exact * 0x1p-23 + 1e-12));
    }
  }
  TestTensor back = single;
  ASSERT_OK(RopeBackward({}, {.x = back.view(),
                              .positions = positions.view(),
                              .inv_freq = inv_freq.view()}));
  EXPECT_LT(RelativeError(back, x), 1e-6);
}

TEST(RopeTest, Float32FollowsFloat64AndThreadsChangeNoBit) {
  ThreadPool pool(2);
  Rope d(true, DType::kF64), f(true, DType::kF32), g(true, DType::kF32);
  ASSERT_OK(RopeForward({}, d.Args(d.x)));
  ASSERT_OK(RopeForward({}, f.Args(f.x)));
  ASSERT_OK(RopeForward({.pool = &pool}, g.Args(g.x)));
  EXPECT_LT(RelativeError(f.x, d.x), 1e-6);
  EXPECT_EQ(RelativeError(f.x, g.x), 0);
}

TEST(RopeTest, AcceptsNoTokensAndRefusesASliceOutsideTheRow) {
  TestTensor none = TestTensor::Zeros(DType::kF32, {0, 2, 4});
  TestTensor no_positions = TestTensor::Table({});
  TestTensor inv_freq = TestTensor::Full(DType::kF32, {2}, 1);
  RopeArgs args = {.x = none.view(),
                   .positions = no_positions.view(),
                   .inv_freq = inv_freq.view()};
  EXPECT_OK(RopeForward({}, args));
  args.offset = 1;
  EXPECT_THAT(RopeForward({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
