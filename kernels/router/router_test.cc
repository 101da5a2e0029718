#include "kernels/router/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::Each;
using ::testing::ElementsAre;
using Score = RouterOptions::Score;

// Tables and outputs of one router of T tokens and E experts.
struct Router {
  Router(int64_t tokens, int64_t experts, int64_t top_k,
         DType dtype = DType::kF64)
      : logits(TestTensor::Random(dtype, {tokens, experts}, 1)),
        ids(TestTensor::Zeros(DType::kI32, {tokens, top_k})),
        weights(TestTensor::Zeros(dtype, {tokens, top_k})),
        counts(experts) {}

  RouterForwardArgs Args() {
    return {.logits = logits.view(),
            .options = options,
            .ids = ids.view(),
            .weights = weights.view(),
            .counts = Tensor(counts.data(), DType::kI64,
                             {static_cast<int64_t>(counts.size())})};
  }
  std::vector<int> Ids() {
    std::vector<int> out;
    for (int64_t i = 0; i < ids.size(); ++i) out.push_back(ids.Get(i));
    return out;
  }

  RouterOptions options;
  TestTensor logits, ids, weights;
  std::vector<int64_t> counts;
};

TEST(RouterTest, BackwardMatchesFiniteDifferences) {
  for (Score score : {Score::kSigmoid, Score::kSoftmax}) {
    for (bool renormalize : {false, true}) {
      for (double eps : {0.0, 0.25}) {
        for (int64_t top_k : {1, 3, 6}) {
          Router r(5, 6, top_k);
          r.options = {.score = score,
                       .renormalize = renormalize,
                       .renormalize_eps = eps,
                       .scaling = 2.5};
          ASSERT_OK(RouterForward({}, r.Args()));
          const std::vector<int> ids = r.Ids();
          TestTensor dweights = TestTensor::Random(DType::kF64, {5, top_k}, 2);
          TestTensor dlogits = TestTensor::Zeros(DType::kF64, {5, 6});
          ASSERT_OK(RouterBackward({}, {.logits = r.logits.view(),
                                        .options = r.options,
                                        .ids = r.ids.view(),
                                        .dweights = dweights.view(),
                                        .dlogits = dlogits.view()}));
          bool same_choice = true;
          ExpectGradients(
              [&] {
                EXPECT_OK(RouterForward({}, r.Args()));
                same_choice = r.Ids() == ids;
                return Dot(r.weights, dweights);
              },
              {{"logits", r.logits.view(), dlogits.view()}},
              {.step = 2e-4, .smooth = [&] { return same_choice; }});
        }
      }
    }
  }
}

TEST(RouterTest, TiesGoToTheLowerExpert) {
  Router r(3, 6, 3);
  r.logits = TestTensor::Of(DType::kF64, {3, 6},
                            {0, 0, 0, 0, 0, 0,        //
                             -0.0, 1, 0, -0.0, 1, 0,  //
                             5, 7, 7, 5, 7, 5});
  ASSERT_OK(RouterForward({}, r.Args()));
  EXPECT_THAT(r.Ids(), ElementsAre(0, 1, 2, 1, 4, 0, 1, 2, 4));
}

TEST(RouterTest, TheBiasMovesTheChoiceAndNotTheWeights) {
  Router r(1, 4, 2);
  r.logits = TestTensor::Of(DType::kF64, {1, 4}, {2, 1, 0, -1});
  r.options = {.renormalize = true, .renormalize_eps = 1e-20, .scaling = 3};
  TestTensor bias = TestTensor::Of(DType::kF64, {4}, {0, 0, 0, 10});
  RouterForwardArgs args = r.Args();
  args.correction_bias = bias.view();
  ASSERT_OK(RouterForward({}, args));
  EXPECT_THAT(r.Ids(), ElementsAre(3, 0));
  auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const double sum = sigmoid(-1) + sigmoid(2);
  EXPECT_NEAR(r.weights.Get(0), 3 * sigmoid(-1) / sum, 1e-14);
  EXPECT_NEAR(r.weights.Get(1), 3 * sigmoid(2) / sum, 1e-14);
}

TEST(RouterTest, OnlyTheBestGroupsAreEligible) {
  Router r(2, 6, 2);
  r.options = {.num_groups = 3, .topk_groups = 1};
  // Sums of two: group 1 wins although the best expert is in group 0. Second
  // row: groups tie, the lower one wins.
  r.logits = TestTensor::Of(DType::kF64, {2, 6},
                            {2, -9, 1.5, 1.6, 1, 1, 0, 1, 1, 0, 0, 1});
  ASSERT_OK(RouterForward({}, r.Args()));
  EXPECT_THAT(r.Ids(), ElementsAre(3, 2, 1, 0));
}

TEST(RouterTest, GroupsOfOneExpertAreScoredByIt) {
  Router r(1, 3, 2);
  r.options = {.num_groups = 3, .topk_groups = 2};
  r.logits = TestTensor::Of(DType::kF64, {1, 3}, {-3, -1, -2});
  ASSERT_OK(RouterForward({}, r.Args()));
  EXPECT_THAT(r.Ids(), ElementsAre(1, 2));
}

TEST(RouterTest, PaddingTokensAreNotRouted) {
  ThreadPool pool(2);
  Router r(20, 8, 2, DType::kF32);
  TestTensor mask = TestTensor::Full(DType::kI32, {20}, 1);
  mask.Set(3, 0);
  mask.Set(19, 0);
  RouterForwardArgs args = r.Args();
  args.mask = mask.view();
  ASSERT_OK(RouterForward({.pool = &pool}, args));
  int64_t total = 0;
  for (int64_t n : r.counts) total += n;
  EXPECT_EQ(total, 36);
  for (int64_t i : {6, 7, 38, 39}) {
    EXPECT_EQ(r.ids.Get(i), -1);
    EXPECT_EQ(r.weights.Get(i), 0);
  }
  TestTensor dweights = TestTensor::Full(DType::kF32, {20, 2}, 1);
  TestTensor dlogits = TestTensor::Full(DType::kF32, {20, 8}, 7);
  ASSERT_OK(RouterBackward({}, {.logits = r.logits.view(),
                                .options = r.options,
                                .ids = r.ids.view(),
                                .dweights = dweights.view(),
                                .dlogits = dlogits.view()}));
  for (int64_t e = 0; e < 8; ++e) EXPECT_EQ(dlogits.Get(3 * 8 + e), 0);
}

TEST(RouterTest, OneExpertCanTakeAllTokensAndOthersNone) {
  Router r(9, 4, 1);
  for (int64_t t = 0; t < 9; ++t) r.logits.Set(t * 4 + 2, 50);
  ASSERT_OK(RouterForward({}, r.Args()));
  EXPECT_THAT(r.counts, ElementsAre(0, 0, 9, 0));
}

TEST(RouterTest, MassiveLogitsStayFinite) {
  for (Score score : {Score::kSigmoid, Score::kSoftmax}) {
    Router r(4, 8, 3, DType::kF32);
    r.logits = TestTensor::Random(DType::kF32, {4, 8}, 3, 600);
    r.options = {.score = score, .renormalize_eps = 1e-20};
    ASSERT_OK(RouterForward({}, r.Args()));
    EXPECT_TRUE(r.weights.AllFinite());
  }
}

TEST(RouterTest, AcceptsNoTokensAndRefusesTooManyExperts) {
  Router none(0, 4, 2);
  ASSERT_OK(RouterForward({}, none.Args()));
  EXPECT_THAT(none.counts, Each(0));
  Router r(1, 6, 3);
  r.options = {.num_groups = 3, .topk_groups = 1};
  EXPECT_THAT(RouterForward({}, r.Args()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// Two layers pooled before the product, as a function of both logits.
TEST(RouterAuxTest, LossAndGradientPoolOverLayers) {
  constexpr int64_t kExperts = 5;
  TestTensor a = TestTensor::Random(DType::kF64, {4, kExperts}, 1);
  TestTensor b = TestTensor::Random(DType::kF64, {3, kExperts}, 2);
  TestTensor mask = TestTensor::Of(DType::kI32, {3}, {1, 0, 1});
  std::vector<int64_t> counts(kExperts), rows(1);
  TestTensor prob_sum = TestTensor::Zeros(DType::kF64, {kExperts});
  TestTensor loss = TestTensor::Zeros(DType::kF64, {1});
  const RouterAuxStatistics statistics = {
      .counts = Tensor(counts.data(), DType::kI64, {kExperts}),
      .prob_sum = prob_sum.view(),
      .num_rows = Tensor(rows.data(), DType::kI64, {1})};
  auto forward = [&] {
    std::fill(counts.begin(), counts.end(), 0);
    rows[0] = 0;
    for (int64_t e = 0; e < kExperts; ++e) prob_sum.Set(e, 0);
    EXPECT_OK(RouterAuxAccumulate(
        {}, {.logits = a.view(), .top_k = 2, .statistics = statistics}));
    EXPECT_OK(RouterAuxAccumulate({}, {.logits = b.view(),
                                       .mask = mask.view(),
                                       .top_k = 2,
                                       .statistics = statistics}));
    EXPECT_OK(RouterAuxLoss({}, statistics, loss.view()));
    return 0.5 * loss.Get(0);
  };
  forward();
  EXPECT_EQ(rows[0], 6);
  const std::vector<int64_t> chosen = counts;
  TestTensor da = TestTensor::Zeros(DType::kF64, {4, kExperts});
  TestTensor db = TestTensor::Zeros(DType::kF64, {3, kExperts});
  ASSERT_OK(RouterAuxBackward({}, {.logits = a.view(),
                                   .statistics = statistics,
                                   .coefficient = 0.5,
                                   .dlogits = da.view()}));
  ASSERT_OK(RouterAuxBackward({}, {.logits = b.view(),
                                   .mask = mask.view(),
                                   .statistics = statistics,
                                   .coefficient = 0.5,
                                   .dlogits = db.view()}));
  ExpectGradients(forward,
                  {{"a", a.view(), da.view()}, {"b", b.view(), db.view()}},
                  {.step = 2e-4, .smooth = [&] { return counts == chosen; }});
  for (int64_t e = 0; e < kExperts; ++e) EXPECT_EQ(db.Get(kExperts + e), 0);
}

TEST(RouterAuxTest, BalancedRoutingGivesTopK) {
  TestTensor logits = TestTensor::Zeros(DType::kF64, {6, 3});
  for (int64_t t = 0; t < 6; ++t) logits.Set(t * 3 + t % 3, -1e-9);
  std::vector<int64_t> counts(3), rows(1);
  TestTensor prob_sum = TestTensor::Zeros(DType::kF64, {3});
  TestTensor loss = TestTensor::Full(DType::kF64, {1}, 9);
  const RouterAuxStatistics statistics = {
      .counts = Tensor(counts.data(), DType::kI64, {3}),
      .prob_sum = prob_sum.view(),
      .num_rows = Tensor(rows.data(), DType::kI64, {1})};
  ASSERT_OK(RouterAuxLoss({}, statistics, loss.view()));
  EXPECT_EQ(loss.Get(0), 0);
  ASSERT_OK(RouterAuxAccumulate(
      {}, {.logits = logits.view(), .top_k = 2, .statistics = statistics}));
  ASSERT_OK(RouterAuxLoss({}, statistics, loss.view()));
  EXPECT_NEAR(loss.Get(0), 2, 1e-6);
}

}  // namespace
}  // namespace cadre
