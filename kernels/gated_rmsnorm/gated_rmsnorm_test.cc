#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "kernels/common/column_groups.h"
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

constexpr DType kF64 = DType::kF64;

TEST(GatedRmsNorm, EqualsTheDefinition) {
  TestTensor x = TestTensor::Of(kF64, {1, 2}, {3, 4});
  TestTensor gate = TestTensor::Of(kF64, {1, 2}, {0, 2});
  TestTensor w = TestTensor::Of(kF64, {2}, {2, -1});
  TestTensor y = TestTensor::Zeros(kF64, {1, 2});
  GatedRmsNormForwardArgs args{.x = x.view(),
                               .gate = gate.view(),
                               .w = w.view(),
                               .y = y.view(),
                               .eps = 0.5};
  ASSERT_OK(GatedRmsNormForward({}, args));
  const double rho = 1 / std::sqrt(13.0), s = 1 / (1 + std::exp(-2.0));
  EXPECT_NEAR(y.Get(0), 3 * rho, 1e-15);
  EXPECT_NEAR(y.Get(1), -4 * rho * s, 1e-15);
  args.activation = GateActivation::kSilu;
  ASSERT_OK(GatedRmsNormForward({}, args));
  EXPECT_NEAR(y.Get(0), 0, 1e-15);
  EXPECT_NEAR(y.Get(1), -8 * rho * s, 1e-15);
}

TEST(GatedRmsNorm, BackwardMatchesFiniteDifferences) {
  ThreadPool pool(2);
  const Exec exec{.pool = &pool};
  for (GateActivation activation :
       {GateActivation::kSigmoid, GateActivation::kSilu}) {
    for (int64_t t : {1, 3, 64}) {
      for (int64_t d : {1, 5, 16}) {
        TestTensor x = TestTensor::Random(kF64, {t, 3, d}, 1);
        TestTensor gate = TestTensor::Random(kF64, {t, 3, d}, 2, 2);
        TestTensor w = TestTensor::Random(kF64, {d}, 3);
        TestTensor y = TestTensor::Zeros(kF64, {t, 3, d});
        TestTensor dy = TestTensor::Random(kF64, {t, 3, d}, 4);
        TestTensor dx = TestTensor::Zeros(kF64, {t, 3, d});
        TestTensor dgate = TestTensor::Zeros(kF64, {t, 3, d});
        TestTensor dw = TestTensor::Zeros(kF64, {d});
        auto loss = [&] {
          EXPECT_OK(GatedRmsNormForward(exec, {.x = x.view(),
                                               .gate = gate.view(),
                                               .w = w.view(),
                                               .y = y.view(),
                                               .eps = 0.1,
                                               .activation = activation}));
          return Dot(y, dy);
        };
        GatedRmsNormBackwardArgs args{.x = x.view(),
                                      .gate = gate.view(),
                                      .w = w.view(),
                                      .dy = dy.view(),
                                      .dx = dx.view(),
                                      .dgate = dgate.view(),
                                      .dw = dw.view(),
                                      .eps = 0.1,
                                      .activation = activation};
        ASSERT_OK(GatedRmsNormBackward(exec, args));
        ExpectGradients(loss, {{"x", x.view(), dx.view()},
                               {"gate", gate.view(), dgate.view()},
                               {"w", w.view(), dw.view()}});
        // dx in place of dy, no weight gradient.
        TestTensor in_place = dy;
        args.dy = args.dx = in_place.view();
        args.dw = Tensor();
        ASSERT_OK(GatedRmsNormBackward(exec, args));
        EXPECT_EQ(RelativeError(in_place, dx), 0);
      }
    }
  }
}

TEST(GatedRmsNorm, GateInAWiderMatrixIsAsItsCopy) {
  constexpr int64_t kT = 5, kV = 3;
  struct Case {
    int64_t heads, width;
    ColumnGroups at;
  };
  for (const auto& [heads, width, at] :
       {Case{4, 20, {.first = 4, .group = 6, .pitch = 10}},
        Case{2, 11, {.first = 5, .group = 6}}}) {
    const int64_t channels = heads * kV;
    TestTensor x = TestTensor::Random(kF64, {kT, heads, kV}, 1);
    TestTensor dy = TestTensor::Random(kF64, {kT, heads, kV}, 2);
    TestTensor w = TestTensor::Random(kF64, {kV}, 3);
    TestTensor wide = TestTensor::Random(kF64, {kT, width}, 4);
    TestTensor gate = x;
    for (int64_t i = 0; i < kT * channels; ++i)
      gate.Set(i, wide.Get(i / channels * width + at.Column(i % channels)));
    struct {
      TestTensor y, dx, dgate, dw;
    } want = {x, x, x, TestTensor::Zeros(kF64, {kV})},
      got = {x, x, TestTensor::Full(kF64, {kT, width}, 7), want.dw};
    const auto run = [&](TestTensor& from, const ColumnGroups& where,
                         auto& out) {
      EXPECT_OK(GatedRmsNormForward({}, {.x = x.view(),
                                         .gate = from.view(),
                                         .w = w.view(),
                                         .y = out.y.view(),
                                         .gate_at = where}));
      EXPECT_OK(GatedRmsNormBackward({}, {.x = x.view(),
                                          .gate = from.view(),
                                          .w = w.view(),
                                          .dy = dy.view(),
                                          .dx = out.dx.view(),
                                          .dgate = out.dgate.view(),
                                          .dw = out.dw.view(),
                                          .gate_at = where}));
    };
    run(gate, {}, want);
    run(wide, at, got);
    EXPECT_EQ(RelativeError(got.y, want.y), 0);
    EXPECT_EQ(RelativeError(got.dx, want.dx), 0);
    EXPECT_EQ(RelativeError(got.dw, want.dw), 0);
    TestTensor dgate = TestTensor::Full(kF64, {kT, width}, 7);
    for (int64_t i = 0; i < kT * channels; ++i)
      dgate.Set(i / channels * width + at.Column(i % channels),
                want.dgate.Get(i));
    EXPECT_EQ(RelativeError(got.dgate, dgate), 0);
    // A head over two groups.
    EXPECT_THAT(GatedRmsNormForward({}, {.x = x.view(),
                                         .gate = wide.view(),
                                         .w = w.view(),
                                         .y = got.y.view(),
                                         .gate_at = {.group = 2, .pitch = 2}}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(GatedRmsNorm, MassiveInputsStayFinite) {
  for (GateActivation activation :
       {GateActivation::kSigmoid, GateActivation::kSilu}) {
    TestTensor x = TestTensor::Random(DType::kF32, {17, 2, 31}, 1, 1e3);
    TestTensor gate = TestTensor::Random(DType::kF32, {17, 2, 31}, 2, 1e3);
    TestTensor w = TestTensor::Random(DType::kF32, {31}, 3);
    TestTensor y = TestTensor::Zeros(DType::kF32, {17, 2, 31});
    TestTensor dx = y, dgate = y, dy = x;
    ASSERT_OK(GatedRmsNormForward({}, {.x = x.view(),
                                       .gate = gate.view(),
                                       .w = w.view(),
                                       .y = y.view(),
                                       .activation = activation}));
    ASSERT_OK(GatedRmsNormBackward({}, {.x = x.view(),
                                        .gate = gate.view(),
                                        .w = w.view(),
                                        .dy = dy.view(),
                                        .dx = dx.view(),
                                        .dgate = dgate.view(),
                                        .activation = activation}));
    EXPECT_TRUE(y.AllFinite() && dx.AllFinite() && dgate.AllFinite());
    TestTensor x64 = x.As(kF64), gate64 = gate.As(kF64), w64 = w.As(kF64);
    TestTensor y64 = y.As(kF64);
    ASSERT_OK(GatedRmsNormForward({}, {.x = x64.view(),
                                       .gate = gate64.view(),
                                       .w = w64.view(),
                                       .y = y64.view(),
                                       .activation = activation}));
    EXPECT_LE(RelativeError(y, y64), 1e-6);
  }
}

TEST(GatedRmsNorm, NoRowsAndBadShapes) {
  TestTensor x = TestTensor::Zeros(kF64, {0, 2, 4});
  TestTensor w = TestTensor::Full(kF64, {4}, 1);
  EXPECT_OK(GatedRmsNormForward(
      {}, {.x = x.view(), .gate = x.view(), .w = w.view(), .y = x.view()}));
  EXPECT_OK(GatedRmsNormBackward({}, {.x = x.view(),
                                      .gate = x.view(),
                                      .w = w.view(),
                                      .dy = x.view(),
                                      .dx = x.view(),
                                      .dgate = x.view(),
                                      .dw = w.view()}));
  TestTensor x3 = TestTensor::Zeros(kF64, {2, 3});
  EXPECT_THAT(
      GatedRmsNormForward(
          {},
          {.x = x3.view(), .gate = x3.view(), .w = w.view(), .y = x3.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
