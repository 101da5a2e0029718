#include "kernels/router/router_overflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

// The rule of remapping in plain loops (docs/expert_parallelism.md): admission
// by (weight, token), then rounds that read the previous round only. `scores`
// [T, E] are the biased ones. Candidates are the best k + kRemapRounds.
std::vector<int32_t> RemapByTheRule(const Routed& r,
                                    const std::vector<double>& scores,
                                    int64_t capacity,
                                    std::vector<int64_t>* moved_in_round) {
  const int64_t E = std::ssize(scores) / r.T, k = r.k;
  struct Pair {
    int64_t token, slot;
    double weight;
    std::set<int32_t> tried;
  };
  std::vector<int32_t> routed(r.T * k, -1);
  std::vector<int64_t> load(E, 0);
  std::vector<std::vector<Pair>> claims(E);
  for (int64_t t = 0; t < r.T; ++t) {
    for (int64_t s = 0; s < k; ++s) {
      claims[static_cast<int64_t>(r.ids.Get(t * k + s))].push_back(
          {t, s, r.before.Get(t * k + s), {}});
    }
  }
  std::vector<Pair> excess;
  for (int64_t e = 0; e < E; ++e) {
    std::stable_sort(
        claims[e].begin(), claims[e].end(),
        [](const Pair& a, const Pair& b) { return a.weight > b.weight; });
    for (Pair& pair : claims[e]) {
      if (load[e] < capacity) {
        routed[pair.token * k + pair.slot] = static_cast<int32_t>(e);
        ++load[e];
      } else {
        excess.push_back(pair);
      }
    }
  }
  // A token's heaviest pair chooses first.
  std::sort(excess.begin(), excess.end(), [](const Pair& a, const Pair& b) {
    return std::tuple(a.token, -a.weight, a.slot) <
           std::tuple(b.token, -b.weight, b.slot);
  });
  moved_in_round->assign(kRemapRounds, 0);
  for (int round = 0; round < kRemapRounds; ++round) {
    std::vector<std::vector<size_t>> proposals(E);
    std::set<std::pair<int64_t, int32_t>> proposed;
    for (size_t i = 0; i < excess.size(); ++i) {
      Pair& pair = excess[i];
      const auto score = [&](int32_t e) { return scores[pair.token * E + e]; };
      std::vector<int32_t> order(E);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return score(a) > score(b);
      });
      order.resize(std::min<int64_t>(E, k + kRemapRounds));
      for (const int32_t e : order) {
        bool held = false;
        for (int64_t s = 0; s < k; ++s) {
          held |= routed[pair.token * k + s] == e ||
                  static_cast<int32_t>(r.ids.Get(pair.token * k + s)) == e;
        }
        if (held || pair.tried.contains(e) || load[e] >= capacity ||
            proposed.contains({pair.token, e})) {
          continue;
        }
        pair.tried.insert(e);
        proposed.insert({pair.token, e});
        proposals[e].push_back(i);
        break;
      }
    }
    std::set<size_t> admitted;
    for (int32_t e = 0; e < E; ++e) {
      std::stable_sort(
          proposals[e].begin(), proposals[e].end(), [&](size_t a, size_t b) {
            const Pair &x = excess[a], &y = excess[b];
            return std::tuple(-scores[x.token * E + e], x.token, x.slot) <
                   std::tuple(-scores[y.token * E + e], y.token, y.slot);
          });
      for (const size_t i : proposals[e]) {
        if (load[e] >= capacity) break;
        routed[excess[i].token * k + excess[i].slot] = e;
        ++load[e];
        ++(*moved_in_round)[round];
        admitted.insert(i);
      }
    }
    std::vector<Pair> left;
    for (size_t i = 0; i < excess.size(); ++i) {
      if (!admitted.contains(i)) left.push_back(excess[i]);
    }
    excess = std::move(left);
  }
  return routed;
}

TEST(RouterOverflowTest, RemapIsTheRuleToTheLetter) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    // More experts than candidates, so that lists end; equal scores happen.
    const int64_t T = 48, E = 14 + static_cast<int64_t>(seed % 5);
    TestTensor logits = TestTensor::Random(DType::kF64, {T, E}, seed);
    const TestTensor skew = TestTensor::Random(DType::kF64, {E}, seed + 99);
    for (int64_t i = 0; i < logits.size(); ++i) {
      logits.Set(i,
                 std::round(4 * (logits.Get(i) + 1.5 * skew.Get(i % E))) / 4);
    }
    Routed r(logits, 4, {.score = RouterOptions::Score::kSigmoid});
    std::vector<double> scores(T * E);
    for (int64_t i = 0; i < T * E; ++i) {
      scores[i] = 1 / (1 + std::exp(-logits.Get(i)));
    }
    for (const int64_t capacity : {4, 11, 14}) {
      r.Overflow(OverflowPolicy::kRemap, capacity);
      std::vector<int64_t> moved;
      const std::vector<int32_t> expected =
          RemapByTheRule(r, scores, capacity, &moved);
      int64_t dropped = 0;
      for (int64_t i = 0; i < T * 4; ++i) {
        ASSERT_EQ(r.routed.Get(i), expected[i]) << "pair " << i;
        dropped += expected[i] < 0;
      }
      EXPECT_EQ(r.counts[kDroppedPairs], dropped);
      for (int round = 0; round < kRemapRounds; ++round) {
        EXPECT_EQ(r.counts[kRemappedPairs + round], moved[round]) << round;
      }
    }
  }
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
      // Candidates are the token's best k + 8 = 11 of the 12 experts. One that
      // lost a pair holds every candidate that has room.
      if (lost) {
        int32_t worst = 0;
        for (int32_t e = 1; e < 12; ++e) {
          // Of equals the lower number ranks first.
          if (logits.Get(t * 12 + e) <= logits.Get(t * 12 + worst)) worst = e;
        }
        for (const int32_t e : with_room) {
          EXPECT_TRUE(e == worst || held.contains(e))
              << "token " << t << ", expert " << e;
        }
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
