#include "kernels/short_conv/conv_front.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

constexpr DType kF64 = DType::kF64;

TEST(ConvFront, GradientsOfAllPartsMatchFiniteDifferences) {
  TestTensor cu = TestTensor::Table({0, 2, 3, 9});
  const std::vector<int64_t> channels = {8, 6, 5}, unit = {4, 3, 0};
  std::vector<TestTensor> x, w, y, dy, dx, dw;
  for (int64_t c : channels) {
    const uint64_t seed = 10 * c;
    x.push_back(TestTensor::Random(kF64, {11, c}, seed));
    w.push_back(TestTensor::Random(kF64, {c, 4}, seed + 1));
    y.push_back(TestTensor::Zeros(kF64, {11, c}));
    dy.push_back(TestTensor::Random(kF64, {11, c}, seed + 2));
    dx.push_back(TestTensor::Full(kF64, {11, c}, 7));
    dw.push_back(TestTensor::Zeros(kF64, {c, 4}));
  }
  ConvFrontForwardArgs forward{.cu_seqlens = cu.view(), .eps = 0.01};
  ConvFrontBackwardArgs backward{.cu_seqlens = cu.view(), .eps = 0.01};
  std::vector<TestTensor> used = dy;
  for (int i = 0; i < 3; ++i) {
    forward.parts.push_back({.x = x[i].view(),
                             .w = w[i].view(),
                             .y = y[i].view(),
                             .unit_dim = unit[i]});
    backward.parts.push_back({.x = x[i].view(),
                              .w = w[i].view(),
                              .dy = used[i].view(),
                              .dx = dx[i].view(),
                              .dw = dw[i].view(),
                              .unit_dim = unit[i]});
  }
  const auto loss = [&] {
    EXPECT_OK(ConvFrontForward({}, forward));
    double sum = 0;
    for (int i = 0; i < 3; ++i) sum += Dot(y[i], dy[i]);
    return sum;
  };
  ASSERT_OK(ConvFrontBackward({}, backward));
  for (int i = 0; i < 3; ++i) {
    ExpectGradients(loss, {{"x", x[i].view(), dx[i].view()},
                           {"w", w[i].view(), dw[i].view()}});
  }
}

TEST(ConvFront, HeadsHaveUnitLength) {
  TestTensor cu = TestTensor::Table({0, 5});
  TestTensor x = TestTensor::Random(kF64, {5, 12}, 1);
  TestTensor w = TestTensor::Random(kF64, {12, 3}, 2);
  TestTensor y = TestTensor::Zeros(kF64, {5, 12});
  TestTensor conv = TestTensor::Zeros(kF64, {5, 12});
  ASSERT_OK(ConvFrontForward(
      {},
      {.parts = {{.x = x.view(), .w = w.view(), .y = y.view(), .unit_dim = 4}},
       .cu_seqlens = cu.view(),
       .eps = 0}));
  ASSERT_OK(ShortConvForward({}, {.x = x.view(),
                                  .w = w.view(),
                                  .cu_seqlens = cu.view(),
                                  .y = conv.view()}));
  for (int64_t head = 0; head < 15; ++head) {
    double squares = 0, length = 0;
    for (int64_t i = 4 * head; i < 4 * head + 4; ++i) {
      squares += y.Get(i) * y.Get(i);
      length += conv.Get(i) * conv.Get(i);
    }
    EXPECT_NEAR(squares, 1, 1e-12);
    EXPECT_NEAR(y.Get(4 * head) * std::sqrt(length), conv.Get(4 * head), 1e-12);
  }
}

TEST(ConvFront, RefusesHeadsThatDoNotFit) {
  TestTensor cu = TestTensor::Table({0, 2});
  TestTensor x = TestTensor::Zeros(kF64, {2, 6});
  TestTensor w = TestTensor::Zeros(kF64, {6, 4});
  TestTensor y = TestTensor::Zeros(kF64, {2, 6});
  ConvFrontForwardArgs args{.cu_seqlens = cu.view()};
  args.parts.push_back(
      {.x = x.view(), .w = w.view(), .y = y.view(), .unit_dim = 4});
  EXPECT_THAT(
      ConvFrontForward({}, args),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("whole heads")));
  args.parts.assign(4, {.x = x.view(), .w = w.view(), .y = y.view()});
  EXPECT_THAT(
      ConvFrontForward({}, args),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 3")));
}

}  // namespace
}  // namespace cadre
