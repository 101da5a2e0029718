#include "kernels/router/router_overflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/router/router_z_loss.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using testing::TestTensor;

// A routed micro-batch and what overflow makes of it.
struct Routed {
  Routed(const TestTensor& given, int64_t top_k, const RouterOptions& router)
      : logits(given.As(DType::kF64)), options(router), k(top_k) {
    T = logits.view().dim(0);
    ids = TestTensor::Zeros(DType::kI32, {T, k});
    routed = ids;
    weights = TestTensor::Zeros(DType::kF64, {T, k});
    sum = TestTensor::Zeros(DType::kF64, {T});
    EXPECT_OK(RouterForward({}, {.logits = logits.view(),
                                 .options = options,
                                 .ids = ids.view(),
                                 .weights = weights.view()}));
    before = weights;
  }

  void Overflow(OverflowPolicy policy, int64_t capacity) {
    weights = before;
    int64_t* const c = counts.data();
    EXPECT_OK(RouterOverflow(
        {}, {.logits = logits.view(),
             .options = options,
             .policy = policy,
             .capacity = capacity,
             .ids = ids.view(),
             .weights = weights.view(),
             .routed_ids = routed.view(),
             .weight_sum = sum.view(),
             .counts = Tensor(c, DType::kI64, {kNumOverflowCounts})}));
  }
  int64_t Load(int32_t expert) const {
    int64_t n = 0;
    for (int64_t i = 0; i < T * k; ++i) n += routed.Get(i) == expert;
    return n;
  }

  TestTensor logits;
  RouterOptions options;
  int64_t T = 0, k;
  TestTensor ids = TestTensor::Table({}), routed = ids, weights = ids,
             before = ids, sum = ids;
  std::vector<int64_t> counts = std::vector<int64_t>(kNumOverflowCounts);
};

// Four tokens that prefer expert 0, then 1, ever more so.
TestTensor Crowd() {
  return TestTensor::Of(DType::kF64, {4, 4},
                        {2, 1, 0, -1,  //
                         3, 1, 0, -1,  //
                         2, 1, 0, -1,  //
                         4, 1, 0, -1});
}

TEST(RouterOverflowTest, DropKeepsTheHeaviestAndOtherWeights) {
  Routed r(Crowd(), 1, {.renormalize = false});
  r.Overflow(OverflowPolicy::kDropByWeight, 2);
  EXPECT_EQ(r.routed.Get(0), -1);
  EXPECT_EQ(r.routed.Get(1), 0);
  EXPECT_EQ(r.routed.Get(2), -1);
  EXPECT_EQ(r.routed.Get(3), 0);
  EXPECT_EQ(r.weights.Get(0), 0);
  EXPECT_EQ(r.weights.Get(1), r.before.Get(1));
  EXPECT_EQ(r.sum.Get(0), -1);
  EXPECT_THAT(r.counts, ElementsAre(4, 2, 0, 0, 0, 0, 0, 0, 0, 0));
  // Equal weights: the first token.
  r.Overflow(OverflowPolicy::kDropByWeight, 3);
  EXPECT_EQ(r.routed.Get(0), 0);
  EXPECT_EQ(r.routed.Get(2), -1);
}

TEST(RouterOverflowTest, DropByPositionKeepsTheFirst) {
  Routed r(Crowd(), 1, {.renormalize = false});
  r.Overflow(OverflowPolicy::kDropByPosition, 2);
  EXPECT_EQ(r.routed.Get(0), 0);
  EXPECT_EQ(r.routed.Get(1), 0);
  EXPECT_EQ(r.routed.Get(2), -1);
  EXPECT_EQ(r.routed.Get(3), -1);
}

TEST(RouterOverflowTest, RemapFollowsTheRounds) {
  Routed r(Crowd(), 1, {});
  r.Overflow(OverflowPolicy::kRemap, 1);
  // Equal scores for experts 1 and 2: the lower token goes first. Weights are 1
  // each (one renormalised choice), so token 0 is the one admitted.
  EXPECT_EQ(r.routed.Get(0), 0);
  EXPECT_EQ(r.routed.Get(1), 1);
  EXPECT_EQ(r.routed.Get(2), 2);
  EXPECT_EQ(r.routed.Get(3), 3);
  EXPECT_THAT(r.counts, ElementsAre(4, 0, 1, 1, 1, 0, 0, 0, 0, 0));
  for (int64_t t = 0; t < 4; ++t) EXPECT_EQ(r.weights.Get(t), 1);
}

TEST(RouterOverflowTest, RemapDropsNothingWhileThereIsRoom) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    // Lognormal popularity of sigma 1, capacity factor 1.
    TestTensor logits = TestTensor::Random(DType::kF64, {64, 12}, seed);
    const TestTensor skew = TestTensor::Random(DType::kF64, {12}, seed + 99);
    for (int64_t i = 0; i < logits.size(); ++i) {
      logits.Set(i, logits.Get(i) + skew.Get(i % 12));
    }
    Routed r(logits, 3, {.score = RouterOptions::Score::kSoftmax});
    r.Overflow(OverflowPolicy::kRemap, 16);
    int64_t moved = 0;
    for (int i = 0; i < kRemapRounds; ++i)
      moved += r.counts[kRemappedPairs + i];
    EXPECT_GT(moved, 0);
    std::set<int32_t> with_room;
    for (int32_t e = 0; e < 12; ++e) {
      EXPECT_LE(r.Load(e), 16);
      if (r.Load(e) < 16) with_room.insert(e);
    }
    int64_t dropped = 0;
    for (int64_t t = 0; t < r.T; ++t) {
      std::set<int32_t> held;
      bool lost = false;
      double sum = 0, before = 0;
      for (int64_t i = t * 3; i < t * 3 + 3; ++i) {
        const auto e = static_cast<int32_t>(r.routed.Get(i));
        lost |= e < 0;
        dropped += e < 0;
        sum += r.weights.Get(i);
        if (e >= 0) {
          EXPECT_TRUE(held.insert(e).second) << "twice the same expert";
          before += r.before.Get(i);
        }
      }
      EXPECT_NEAR(sum, before, 1e-12);
      // All 12 experts are candidates (k + 8 = 11 of them, to be exact): a
      // token that lost a pair holds all that have room, but for one.
      if (lost) {
        int64_t open = 0;
        for (int32_t e : with_room) open += held.count(e) == 0;
        EXPECT_LE(open, 1) << "token " << t;
      }
    }
    EXPECT_EQ(dropped, r.counts[kDroppedPairs]);
  }
}

TEST(RouterOverflowTest, CapacityForAllChangesNothing) {
  Routed r(TestTensor::Random(DType::kF64, {20, 6}, 3), 2, {});
  for (const auto policy :
       {OverflowPolicy::kDropByWeight, OverflowPolicy::kRemap}) {
    r.Overflow(policy, 20);
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_EQ(r.routed.Get(i), r.ids.Get(i));
      EXPECT_EQ(r.weights.Get(i), r.before.Get(i));
    }
  }
}

// The gradient of sum c_i w_i over final weights, at fixed routes.
TEST(RouterOverflowTest, GradientOfRemappedWeights) {
  for (const auto score :
       {RouterOptions::Score::kSigmoid, RouterOptions::Score::kSoftmax}) {
    Routed r(TestTensor::Random(DType::kF64, {12, 9}, 7), 3, {.score = score});
    r.Overflow(OverflowPolicy::kRemap, 4);
    const TestTensor routed = r.routed;
    const TestTensor fixed_sum = r.sum;
    const TestTensor c = TestTensor::Random(DType::kF64, {12, 3}, 8);
    TestTensor dweights = c;
    for (int64_t i = 0; i < 36; ++i) {
      if (routed.Get(i) < 0) dweights.Set(i, 0);
    }
    TestTensor dlogits = TestTensor::Zeros(DType::kF64, {12, 9});
    ASSERT_OK(RouterOverflowBackward({}, {.logits = r.logits.view(),
                                          .options = r.options,
                                          .routed_ids = r.routed.view(),
                                          .weight_sum = r.sum.view(),
                                          .dweights = dweights.view(),
                                          .dlogits = dlogits.view()}));
    ASSERT_OK(RouterBackward({}, {.logits = r.logits.view(),
                                  .options = r.options,
                                  .ids = r.ids.view(),
                                  .dweights = dweights.view(),
                                  .dlogits = dlogits.view(),
                                  .accumulate = true}));
    const auto loss = [&] {
      // Plain formulas, routes and sums as they were.
      double total = 0;
      for (int64_t t = 0; t < 12; ++t) {
        const bool moved = fixed_sum.Get(t) >= 0;
        double norm = 0, s[3];
        for (int64_t i = 0; i < 3; ++i) {
          const auto e = static_cast<int64_t>(moved ? routed.Get(t * 3 + i)
                                                    : r.ids.Get(t * 3 + i));
          s[i] = 0;
          if (e < 0) continue;
          const double x = r.logits.Get(t * 9 + e);
          s[i] = score == RouterOptions::Score::kSigmoid
                     ? 1 / (1 + std::exp(-x))
                     : std::exp(x);
          norm += s[i];
        }
        for (int64_t i = 0; i < 3; ++i) {
          if (routed.Get(t * 3 + i) < 0) continue;
          total +=
              c.Get(t * 3 + i) * s[i] / norm * (moved ? fixed_sum.Get(t) : 1.0);
        }
      }
      return total;
    };
    testing::ExpectGradients(loss,
                             {{"logits", r.logits.view(), dlogits.view()}});
  }
}

TEST(RouterZLossTest, ValueAndGradient) {
  TestTensor logits = TestTensor::Random(DType::kF64, {5, 7}, 1, 2.0);
  TestTensor mask = TestTensor::Table({1, 1, 0, 1, 1});
  TestTensor grad = TestTensor::Zeros(DType::kF64, {5, 7});
  double sum = 0;
  const auto loss = [&] {
    sum = 0;
    EXPECT_OK(RouterZLoss({}, {.logits = logits.view(),
                               .mask = mask.view(),
                               .sum = Tensor(&sum, DType::kF64, {1})}));
    return 0.3 * sum;
  };
  EXPECT_OK(RouterZLoss({}, {.logits = logits.view(),
                             .mask = mask.view(),
                             .coefficient = 0.3,
                             .dlogits = grad.view()}));
  testing::ExpectGradients(loss, {{"logits", logits.view(), grad.view()}});
}

}  // namespace
}  // namespace cadre
