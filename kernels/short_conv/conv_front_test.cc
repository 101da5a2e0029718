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
using ::cadre::testing::RelativeError;
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

// Queries, keys, values and something else out of one projection, as Gated
// DeltaNet has them: grouped by key head, or all of a kind side by side.
struct OneTensor {
  int64_t key_heads, heads_per_key, key_dim, value_dim;
  bool grouped;

  int64_t group_values() const { return heads_per_key * value_dim; }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return key_heads * group_values(); }
  int64_t width() const {
    return 2 * keys() + (grouped ? 2 * values() : values());
  }
  int64_t channels(int part) const { return part < 2 ? keys() : values(); }
  ColumnGroups at(int part) const {
    if (!grouped) return {.first = part * keys(), .group = channels(part)};
    return {.first = part * key_dim,
            .group = part < 2 ? key_dim : group_values(),
            .pitch = 2 * key_dim + 2 * group_values()};
  }
};

TEST(ConvFront, PartsOfOneTensorAreAsTheStepsOnTheirCopies) {
  for (const OneTensor& one :
       {OneTensor{3, 2, 5, 4, true}, OneTensor{2, 1, 6, 3, true},
        OneTensor{1, 4, 2, 70, true}, OneTensor{3, 2, 5, 4, false}}) {
    for (const std::vector<int32_t>& borders :
         {std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 2, 3, 3, 9}}) {
      const int64_t T = borders.back() == 1 ? 1 : 11;
      TestTensor cu = TestTensor::Table(borders);
      TestTensor x = TestTensor::Random(kF64, {T, one.width()}, 1);
      TestTensor dx = TestTensor::Full(kF64, {T, one.width()}, 7);
      TestTensor dx_want = dx;
      ConvFrontForwardArgs forward{.cu_seqlens = cu.view()};
      ConvFrontBackwardArgs backward{.cu_seqlens = cu.view()};
      std::vector<TestTensor> w, y, dy, y_want, spare, dw, dw_want;
      for (int part = 0; part < 3; ++part) {
        const int64_t C = one.channels(part);
        const int64_t unit = part < 2 ? one.key_dim : 0;
        w.push_back(TestTensor::Random(kF64, {C, 4}, part + 2));
        y.push_back(TestTensor::Full(kF64, {T, C}, 7));
        dy.push_back(TestTensor::Random(kF64, {T, C}, part + 5));
        dw.push_back(TestTensor::Full(kF64, {C, 4}, 0.5));
        spare.push_back(TestTensor::Full(kF64, {T, C}, 7));
        y_want.push_back(y.back());
        dw_want.push_back(dw.back());
        // The same from a copy of the part.
        TestTensor dense = y.back(), back = y.back(), g = dy.back();
        for (int64_t i = 0; i < T * C; ++i)
          dense.Set(i, x.Get(i / C * one.width() + one.at(part).Column(i % C)));
        ASSERT_OK(ConvFrontForward({}, {.parts = {{.x = dense.view(),
                                                   .w = w[part].view(),
                                                   .y = y_want[part].view(),
                                                   .unit_dim = unit}},
                                        .cu_seqlens = cu.view()}));
        ASSERT_OK(ConvFrontBackward({}, {.parts = {{.x = dense.view(),
                                                    .w = w[part].view(),
                                                    .dy = g.view(),
                                                    .dx = back.view(),
                                                    .dw = dw_want[part].view(),
                                                    .unit_dim = unit}},
                                         .cu_seqlens = cu.view()}));
        for (int64_t i = 0; i < T * C; ++i)
          dx_want.Set(i / C * one.width() + one.at(part).Column(i % C),
                      back.Get(i));
      }
      for (int part = 0; part < 3; ++part) {
        const int64_t unit = part < 2 ? one.key_dim : 0;
        forward.parts.push_back({.x = x.view(),
                                 .w = w[part].view(),
                                 .y = y[part].view(),
                                 .unit_dim = unit,
                                 .at = one.at(part)});
        backward.parts.push_back(
            {.x = x.view(),
             .w = w[part].view(),
             .dy = dy[part].view(),
             .dx = dx.view(),
             .dw = dw[part].view(),
             .unit_dim = unit,
             .at = one.at(part),
             .spare = part < 2 ? spare[part].view() : Tensor()});
      }
      ASSERT_OK(ConvFrontForward({}, forward));
      ASSERT_OK(ConvFrontBackward({}, backward));
      for (int part = 0; part < 3; ++part) {
        EXPECT_EQ(RelativeError(y[part], y_want[part]), 0) << part;
        EXPECT_EQ(RelativeError(dw[part], dw_want[part]), 0) << part;
      }
      // What is no part's is left alone.
      EXPECT_EQ(RelativeError(dx, dx_want), 0);
    }
  }
}

TEST(ConvFront, MovesColumnsThereAndBack) {
  // b and a of two value heads each, for three key heads; then with a column
  // behind them all.
  for (const int64_t width : {12, 13}) {
    TestTensor wide = TestTensor::Random(kF64, {5, width}, 1);
    TestTensor b = TestTensor::Zeros(kF64, {5, 6}), a = b;
    TestTensor back = TestTensor::Full(kF64, {5, width}, 7);
    const auto moves = [&](TestTensor& t) {
      return std::vector<ConvFrontMove>{
          {.wide = t.view(),
           .narrow = b.view(),
           .at = {.first = 0, .group = 2, .pitch = 4}},
          {.wide = t.view(),
           .narrow = a.view(),
           .at = {.first = 2, .group = 2, .pitch = 4}}};
    };
    ASSERT_OK(ConvFrontForward({}, {.moves = moves(wide)}));
    for (int64_t i = 0; i < 30; ++i) {
      const int64_t at = i / 6 * width + i % 6 / 2 * 4 + i % 2;
      EXPECT_EQ(b.Get(i), wide.Get(at));
      EXPECT_EQ(a.Get(i), wide.Get(at + 2));
    }
    ASSERT_OK(ConvFrontBackward({}, {.moves = moves(back)}));
    for (int64_t i = 0; i < 5 * width; ++i)
      EXPECT_EQ(back.Get(i), i % width < 12 ? wide.Get(i) : 7);
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

TEST(ConvFront, RefusesColumnsThatAreNotThere) {
  TestTensor cu = TestTensor::Table({0, 2});
  TestTensor x = TestTensor::Zeros(kF64, {2, 12});
  TestTensor w = TestTensor::Zeros(kF64, {6, 4});
  TestTensor y = TestTensor::Zeros(kF64, {2, 6});
  for (const ColumnGroups& at :
       {ColumnGroups{0, 4, 6}, ColumnGroups{0, 3, 2}, ColumnGroups{4, 3, 6},
        ColumnGroups{7, 6, 0}, ColumnGroups{-1, 6, 0}}) {
    EXPECT_THAT(
        ConvFrontForward(
            {},
            {.parts = {{.x = x.view(), .w = w.view(), .y = y.view(), .at = at}},
             .cu_seqlens = cu.view()}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in groups")));
  }
  EXPECT_THAT(ConvFrontBackward({}, {.parts = {{.x = x.view(),
                                                .w = w.view(),
                                                .dy = y.view(),
                                                .dx = x.view(),
                                                .unit_dim = 3,
                                                .at = {3, 3, 6}}},
                                     .cu_seqlens = cu.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("spare")));
}

}  // namespace
}  // namespace cadre
