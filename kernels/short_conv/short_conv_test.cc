#include "kernels/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

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

double SiluOf(double x) { return x / (1 + std::exp(-x)); }

TEST(ShortConv, LastTapIsTheCurrentToken) {
  // Documents of 2 and 1 tokens and a row of padding.
  TestTensor x = TestTensor::Of(kF64, {4, 1}, {1, 2, 3, 9});
  TestTensor w = TestTensor::Of(kF64, {1, 3}, {100, 10, 1});
  TestTensor cu = TestTensor::Table({0, 2, 3});
  TestTensor y = TestTensor::Full(kF64, {4, 1}, 7);
  ASSERT_OK(ShortConvForward(
      {},
      {.x = x.view(), .w = w.view(), .cu_seqlens = cu.view(), .y = y.view()}));
  EXPECT_NEAR(y.Get(0), SiluOf(1), 1e-15);
  EXPECT_NEAR(y.Get(1), SiluOf(12), 1e-14);
  EXPECT_NEAR(y.Get(2), SiluOf(3), 1e-15);
  EXPECT_EQ(y.Get(3), 0);
}

TEST(ShortConv, BackwardMatchesFiniteDifferences) {
  ThreadPool pool(2);
  const Exec exec{.pool = &pool};
  const std::vector<std::vector<int32_t>> tables = {
      {0, 1}, {0, 3}, {0, 1, 3, 3, 6, 10, 17}, {0, 64}, {0, 2, 60}, {0}};
  for (const auto& table : tables) {
    for (int64_t width : {1, 2, 4, 5}) {
      for (int64_t channels : {1, 67}) {
        const int64_t t = table.back() + 2;
        TestTensor cu = TestTensor::Table(table);
        TestTensor x = TestTensor::Random(kF64, {t, channels}, 1);
        TestTensor w = TestTensor::Random(kF64, {channels, width}, 2);
        TestTensor y = TestTensor::Zeros(kF64, {t, channels});
        TestTensor dy = TestTensor::Random(kF64, {t, channels}, 3);
        TestTensor dx = TestTensor::Full(kF64, {t, channels}, 5);
        TestTensor dw = TestTensor::Zeros(kF64, {channels, width});
        auto loss = [&] {
          EXPECT_OK(ShortConvForward(exec, {.x = x.view(),
                                            .w = w.view(),
                                            .cu_seqlens = cu.view(),
                                            .y = y.view()}));
          return Dot(y, dy);
        };
        ASSERT_OK(ShortConvBackward(exec, {.x = x.view(),
                                           .w = w.view(),
                                           .cu_seqlens = cu.view(),
                                           .dy = dy.view(),
                                           .dx = dx.view(),
                                           .dw = dw.view()}));
        ExpectGradients(
            loss, {{"x", x.view(), dx.view()}, {"w", w.view(), dw.view()}});
        // Padding, exactly.
        for (int64_t i = table.back() * channels; i < dx.size(); ++i) {
          ASSERT_EQ(dx.Get(i), 0);
          ASSERT_EQ(y.Get(i), 0);
        }
      }
    }
  }
}

TEST(ShortConv, PackedDocumentsEqualSeparateOnes) {
  const std::vector<int32_t> table = {0, 1, 3, 6, 10, 10, 127};
  TestTensor cu = TestTensor::Table(table);
  TestTensor x = TestTensor::Random(DType::kF32, {127, 5}, 1);
  TestTensor w = TestTensor::Random(DType::kF32, {5, 4}, 2);
  TestTensor y = TestTensor::Zeros(DType::kF32, {127, 5});
  ASSERT_OK(ShortConvForward(
      {},
      {.x = x.view(), .w = w.view(), .cu_seqlens = cu.view(), .y = y.view()}));
  TestTensor alone = TestTensor::Zeros(DType::kF32, {127, 5});
  for (size_t doc = 0; doc + 1 < table.size(); ++doc) {
    TestTensor one = TestTensor::Table({0, table[doc + 1] - table[doc]});
    ASSERT_OK(ShortConvForward(
        {}, {.x = x.view().Rows(table[doc], table[doc + 1]),
             .w = w.view(),
             .cu_seqlens = one.view(),
             .y = alone.view().Rows(table[doc], table[doc + 1])}));
  }
  for (int64_t i = 0; i < y.size(); ++i) ASSERT_EQ(y.Get(i), alone.Get(i));
}

TEST(ShortConv, PaddingIsNotReadAndWeightGradientAccumulates) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  TestTensor x = TestTensor::Of(kF64, {3, 1}, {1, 2, nan});
  TestTensor dy = TestTensor::Of(kF64, {3, 1}, {1, 1, nan});
  TestTensor w = TestTensor::Of(kF64, {1, 2}, {0.5, 1});
  TestTensor cu = TestTensor::Table({0, 2});
  TestTensor dx = TestTensor::Full(kF64, {3, 1}, nan);
  TestTensor dw = TestTensor::Zeros(kF64, {1, 2});
  ShortConvBackwardArgs args{.x = x.view(),
                             .w = w.view(),
                             .cu_seqlens = cu.view(),
                             .dy = dy.view(),
                             .dx = dx.view(),
                             .dw = dw.view()};
  ASSERT_OK(ShortConvBackward({}, args));
  EXPECT_TRUE(dx.AllFinite() && dw.AllFinite());
  const TestTensor once = dw;
  ASSERT_OK(ShortConvBackward({}, args));
  EXPECT_DOUBLE_EQ(dw.Get(1), 2 * once.Get(1));
}

TEST(ShortConv, MassiveInputsStayFiniteAndAgreeWithFloat64) {
  TestTensor cu = TestTensor::Table({0, 65});
  TestTensor x = TestTensor::Random(DType::kF32, {65, 7}, 1, 1e3);
  TestTensor w = TestTensor::Random(DType::kF32, {7, 4}, 2);
  TestTensor y = TestTensor::Zeros(DType::kF32, {65, 7});
  ASSERT_OK(ShortConvForward(
      {},
      {.x = x.view(), .w = w.view(), .cu_seqlens = cu.view(), .y = y.view()}));
  EXPECT_TRUE(y.AllFinite());
  TestTensor x64 = x.As(kF64), w64 = w.As(kF64), y64 = y.As(kF64);
  ASSERT_OK(ShortConvForward({}, {.x = x64.view(),
                                  .w = w64.view(),
                                  .cu_seqlens = cu.view(),
                                  .y = y64.view()}));
  EXPECT_LE(RelativeError(y, y64), 1e-6);
}

TEST(ShortConv, RefusesBadTables) {
  TestTensor x = TestTensor::Zeros(kF64, {4, 2});
  TestTensor w = TestTensor::Zeros(kF64, {2, 4});
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{}, {1, 4}, {0, 3, 2}, {0, 5}}) {
    TestTensor cu = TestTensor::Table(bad);
    EXPECT_THAT(
        ShortConvForward({}, {.x = x.view(),
                              .w = w.view(),
                              .cu_seqlens = cu.view(),
                              .y = x.view()}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cu_seqlens")));
  }
}

}  // namespace
}  // namespace cadre
