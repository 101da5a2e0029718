#include "kernels/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
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

constexpr double kInvCount = 0.25;

TEST(CrossEntropyTest, GradientMatchesFiniteDifferences) {
  TestTensor logits = TestTensor::Random(DType::kF64, {4, 7}, 1, 2);
  TestTensor targets = TestTensor::Table({3, kIgnoreTarget, 0, 6});
  TestTensor loss = TestTensor::Zeros(DType::kF64, {1});
  TestTensor dlogits = logits;
  ASSERT_OK(CrossEntropy({}, {.logits = dlogits.view(),
                              .targets = targets.view(),
                              .loss_sum = loss.view(),
                              .gradient = true,
                              .inv_count = kInvCount}));
  ExpectGradients(
      [&] {
        loss.Set(0, 0);
        EXPECT_OK(CrossEntropy({}, {.logits = logits.view(),
                                    .targets = targets.view(),
                                    .loss_sum = loss.view()}));
        return kInvCount * loss.Get(0);
      },
      {{"logits", logits.view(), dlogits.view()}});
  for (int64_t e = 0; e < 7; ++e) EXPECT_EQ(dlogits.Get(7 + e), 0);
}

TEST(CrossEntropyTest, EqualLogitsCostTheLogOfTheVocabularyAndSumsAdd) {
  TestTensor logits = TestTensor::Full(DType::kF32, {3, 11}, 5);
  TestTensor targets = TestTensor::Table({0, 10, 4});
  TestTensor loss = TestTensor::Full(DType::kF64, {1}, 100);
  ASSERT_OK(CrossEntropy({}, {.logits = logits.view(),
                              .targets = targets.view(),
                              .loss_sum = loss.view()}));
  EXPECT_NEAR(loss.Get(0), 100 + 3 * std::log(11.0), 1e-6);
  EXPECT_EQ(logits.Get(0), 5);
}

TEST(CrossEntropyTest, MassiveLogitsStayFinite) {
  TestTensor logits = TestTensor::Of(DType::kF32, {1, 3}, {-3e4, 3e4, 0});
  TestTensor targets = TestTensor::Table({0});
  TestTensor loss = TestTensor::Zeros(DType::kF64, {1});
  ASSERT_OK(CrossEntropy({}, {.logits = logits.view(),
                              .targets = targets.view(),
                              .loss_sum = loss.view(),
                              .gradient = true}));
  EXPECT_EQ(loss.Get(0), 6e4);
  EXPECT_EQ(logits.Get(0), -1);
  EXPECT_EQ(logits.Get(1), 1);
}

// The vocabulary of Kimi and more: sums of 163,840 exponentials in float32.
TEST(CrossEntropyTest, Float32HoldsForAVocabularyOf163840) {
  constexpr int64_t kVocabulary = 163'840;
  for (double stddev : {0.02, 1.0, 10.0}) {
    const TestTensor drawn =
        TestTensor::Random(DType::kF32, {4, kVocabulary}, 1, stddev);
    TestTensor single = drawn, full = drawn.As(DType::kF64);
    TestTensor targets = TestTensor::Table({0, 163'839, kIgnoreTarget, 77});
    TestTensor losses[] = {TestTensor::Zeros(DType::kF64, {1}),
                           TestTensor::Zeros(DType::kF64, {1})};
    TestTensor* logits[] = {&single, &full};
    for (int i : {0, 1}) {
      ASSERT_OK(CrossEntropy({}, {.logits = logits[i]->view(),
                                  .targets = targets.view(),
                                  .loss_sum = losses[i].view(),
                                  .gradient = true}));
    }
    EXPECT_NEAR(losses[0].Get(0), losses[1].Get(0), 1e-6 * losses[1].Get(0));
    EXPECT_LT(RelativeError(single, full), 1e-6);
    // Probabilities less the one of the target sum to nothing.
    double sum = 0;
    for (int64_t e = 0; e < kVocabulary; ++e) sum += single.Get(e);
    EXPECT_NEAR(sum, 0, 1e-5);
  }
}

TEST(CrossEntropyTest, AcceptsNoTokensAllIgnoredAndNamesABadTarget) {
  TestTensor none = TestTensor::Zeros(DType::kF32, {0, 3});
  TestTensor no_targets = TestTensor::Table({});
  TestTensor loss = TestTensor::Zeros(DType::kF64, {1});
  EXPECT_OK(CrossEntropy({}, {.logits = none.view(),
                              .targets = no_targets.view(),
                              .loss_sum = loss.view()}));
  TestTensor logits = TestTensor::Random(DType::kF32, {2, 3}, 1);
  TestTensor ignored = TestTensor::Table({kIgnoreTarget, kIgnoreTarget});
  EXPECT_OK(CrossEntropy({}, {.logits = logits.view(),
                              .targets = ignored.view(),
                              .loss_sum = loss.view(),
                              .gradient = true}));
  EXPECT_EQ(loss.Get(0), 0);
  EXPECT_EQ(Dot(logits, logits), 0);
  TestTensor bad = TestTensor::Table({1, 3});
  EXPECT_THAT(CrossEntropy({}, {.logits = logits.view(),
                                .targets = bad.view(),
                                .loss_sum = loss.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("token 1 has target 3")));
}

struct Head {
  explicit Head(int64_t block)
      : workspace(TestTensor::Zeros(DType::kF64, {block, 13})) {}
  LinearCrossEntropyArgs Args(bool gradient) {
    loss.Set(0, 0);
    return {.x = x.view(),
            .head = head.view(),
            .targets = targets.view(),
            .workspace = workspace.view(),
            .inv_count = kInvCount,
            .loss_sum = loss.view(),
            .dx = gradient ? dx.view() : Tensor(),
            .dhead = gradient ? dhead.view() : Tensor(),
            .logits = logits.view()};
  }

  TestTensor x = TestTensor::Random(DType::kF64, {5, 6}, 1);
  TestTensor head = TestTensor::Random(DType::kF64, {13, 6}, 2);
  TestTensor targets = TestTensor::Table({3, 0, kIgnoreTarget, 12, 7});
  TestTensor loss = TestTensor::Zeros(DType::kF64, {1});
  TestTensor logits = TestTensor::Zeros(DType::kF64, {5, 13});
  TestTensor dx = x;
  TestTensor dhead = TestTensor::Zeros(DType::kF64, {13, 6});
  TestTensor workspace;
};

TEST(LinearCrossEntropyTest, BackwardMatchesFiniteDifferences) {
  Head h(2);
  ASSERT_OK(LinearCrossEntropy({}, h.Args(true)));
  ExpectGradients(
      [&] {
        EXPECT_OK(LinearCrossEntropy({}, h.Args(false)));
        return kInvCount * h.loss.Get(0);
      },
      {{"x", h.x.view(), h.dx.view()},
       {"head", h.head.view(), h.dhead.view()}});
}

TEST(LinearCrossEntropyTest, TheBlockSizeDoesNotMatter) {
  ThreadPool pool(2);
  Head whole(8);
  ASSERT_OK(LinearCrossEntropy({}, whole.Args(true)));
  for (int64_t block : {1, 3, 5}) {
    Head h(block);
    ASSERT_OK(LinearCrossEntropy({.pool = &pool}, h.Args(true)));
    EXPECT_NEAR(h.loss.Get(0), whole.loss.Get(0), 1e-13);
    EXPECT_LT(RelativeError(h.dx, whole.dx), 1e-14);
    EXPECT_LT(RelativeError(h.dhead, whole.dhead), 1e-14);
    EXPECT_LT(RelativeError(h.logits, whole.logits), 1e-14);
  }
}

TEST(LinearCrossEntropyTest, HeadGradientsAccumulate) {
  Head h(2);
  ASSERT_OK(LinearCrossEntropy({}, h.Args(true)));
  const TestTensor once = h.dhead;
  ASSERT_OK(LinearCrossEntropy({}, h.Args(true)));
  for (int64_t i = 0; i < once.size(); ++i)
    EXPECT_NEAR(h.dhead.Get(i), 2 * once.Get(i), 1e-14);
}

}  // namespace
}  // namespace cadre
