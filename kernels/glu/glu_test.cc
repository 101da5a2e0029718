#include "kernels/glu/glu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using Kind = GluActivation::Kind;

constexpr GluActivation kClamped = {.kind = Kind::kClampedSwiGlu, .limit = 10};
constexpr GluActivation kSiTu = {
    .kind = Kind::kSiTu, .beta = 4, .linear_beta = 25};

struct PairResult {
  double h, dgate, dup;
};

PairResult RunPair(const GluActivation& activation, double g, double u) {
  TestTensor both = TestTensor::Of(DType::kF64, {1, 2}, {g, u});
  TestTensor h = TestTensor::Zeros(DType::kF64, {1, 1});
  TestTensor dh = TestTensor::Full(DType::kF64, {1, 1}, 1);
  EXPECT_OK(GluForward(
      {}, {.gate_up = both.view(), .activation = activation, .h = h.view()}));
  // In place: the gradients overwrite the halves.
  EXPECT_OK(GluBackward({}, {.gate_up = both.view(),
                             .activation = activation,
                             .dh = dh.view(),
                             .dgate_up = both.view()}));
  return {h.Get(0), both.Get(0), both.Get(1)};
}

TEST(GluTest, ClampedSwiGluHasTheHandValueAndNoGradientOutside) {
  const PairResult result = RunPair(kClamped, 12, -15);
  EXPECT_NEAR(result.h, -99.995460, 5e-7);
  EXPECT_EQ(result.dgate, 0);
  EXPECT_EQ(result.dup, 0);
}

TEST(GluTest, ClampedSwiGluHasAGradientOnTheBoundAndNoLowerBoundOnTheGate) {
  const PairResult bound = RunPair(kClamped, 10, 10);
  EXPECT_GT(bound.dgate, 0);
  EXPECT_GT(bound.dup, 0);
  EXPECT_NE(RunPair(kClamped, -12, 1).dgate, 0);
}

TEST(GluTest, SiTuHasTheHandValues) {
  EXPECT_NEAR(RunPair(kSiTu, 1, 2).h, 1.4293511, 5e-8);
  EXPECT_NEAR(RunPair(kSiTu, -8, 40).h, -0.0297963, 5e-8);
}

TEST(GluTest, BackwardMatchesFiniteDifferencesInBothForms) {
  const GluActivation clamped = {.kind = Kind::kClampedSwiGlu, .limit = 0.7};
  for (const GluActivation& activation : {GluActivation{}, clamped, kSiTu}) {
    TestTensor both = TestTensor::Random(DType::kF64, {3, 10}, 1);
    TestTensor h = TestTensor::Zeros(DType::kF64, {3, 5});
    TestTensor dh = TestTensor::Random(DType::kF64, {3, 5}, 2);
    TestTensor dboth = TestTensor::Zeros(DType::kF64, {3, 10});
    ASSERT_OK(GluBackward({}, {.gate_up = both.view(),
                               .activation = activation,
                               .dh = dh.view(),
                               .dgate_up = dboth.view()}));
    ExpectGradients(
        [&] {
          EXPECT_OK(GluForward({}, {.gate_up = both.view(),
                                    .activation = activation,
                                    .h = h.view()}));
          return Dot(h, dh);
        },
        {{"gate_up", both.view(), dboth.view()}}, {.step = 1e-4});

    TestTensor gate = TestTensor::Zeros(DType::kF64, {3, 5});
    TestTensor up = gate, dgate = gate, dup = gate, h2 = gate;
    for (int64_t i = 0; i < 15; ++i) {
      gate.Set(i, both.Get(i / 5 * 10 + i % 5));
      up.Set(i, both.Get(i / 5 * 10 + 5 + i % 5));
    }
    ASSERT_OK(GluForward({}, {.gate = gate.view(),
                              .up = up.view(),
                              .activation = activation,
                              .h = h2.view()}));
    ASSERT_OK(GluBackward({}, {.gate = gate.view(),
                               .up = up.view(),
                               .activation = activation,
                               .dh = dh.view(),
                               .dgate = dgate.view(),
                               .dup = dup.view()}));
    for (int64_t i = 0; i < 15; ++i) {
      EXPECT_EQ(h2.Get(i), h.Get(i));
      EXPECT_EQ(dgate.Get(i), dboth.Get(i / 5 * 10 + i % 5));
      EXPECT_EQ(dup.Get(i), dboth.Get(i / 5 * 10 + 5 + i % 5));
    }
  }
}

TEST(GluTest, MassiveActivationsStayFinite) {
  for (const GluActivation& activation : {GluActivation{}, kClamped, kSiTu}) {
    for (double g : {-1e4, -600.0, 600.0, 1e4}) {
      const PairResult result = RunPair(activation, g, -1e4);
      EXPECT_TRUE(std::isfinite(result.h)) << g;
      EXPECT_TRUE(std::isfinite(result.dgate)) << g;
      EXPECT_TRUE(std::isfinite(result.dup)) << g;
    }
  }
}

TEST(GluTest, AcceptsNoRowsAndRefusesMixedForms) {
  TestTensor none = TestTensor::Zeros(DType::kF32, {0, 4});
  EXPECT_OK(GluForward(
      {}, {.gate = none.view(), .up = none.view(), .h = none.view()}));
  TestTensor h = TestTensor::Zeros(DType::kF32, {1, 4});
  EXPECT_THAT(GluForward({}, {.h = h.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(GluForward({}, {.gate = h.view(),
                              .up = h.view(),
                              .activation = {.kind = Kind::kClampedSwiGlu},
                              .h = h.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
