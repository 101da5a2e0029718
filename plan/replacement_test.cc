#include "plan/replacement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/status_matchers.h"
#include "plan/load_metrics.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;
using What = ExpertMove::What;

TEST(EvaluateLoad, MeasuresTheRouterNotTheRanks) {
  const LoadMetrics m = EvaluateLoad({0, 2, 2, 4});
  EXPECT_EQ(m.mean, 2);
  EXPECT_EQ(m.max_vio, 1);
  EXPECT_EQ(m.balancedness, 0.5);
  EXPECT_DOUBLE_EQ(m.coefficient_of_variation, std::sqrt(0.5));
  EXPECT_EQ(m.dead_experts, 1);
  const LoadMetrics idle = EvaluateLoad({0, 0});
  EXPECT_EQ(idle.max_vio, 0);
  EXPECT_EQ(idle.balancedness, 1);
  EXPECT_EQ(idle.dead_experts, 2);
  const LoadMetrics both = EvaluateLoads({{0, 2, 2, 4}, {6, 6, 6, 6}});
  EXPECT_EQ(both.mean, 4);
  EXPECT_EQ(both.max, 6);
  EXPECT_DOUBLE_EQ(both.balancedness, 0.8);
  EXPECT_DOUBLE_EQ(both.max_vio, 0.5);
  EXPECT_EQ(EvaluateLoads({}).balancedness, 1);
}

// 4 experts, 2 ranks, 3 slots each.
constexpr PlacementShape kShape = {
    .num_layers = 1, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 3};

ExpertPlacement Make(const std::vector<int32_t>& slots) {
  return *MakePlacement(kShape, {slots}, 0);
}

TEST(PlanMoves, NamesSourcesBytesAndState) {
  const ExpertPlacement from = Make({0, 1, -1, 2, 3, 0});
  // Slot 2 takes 3 from the other rank; slot 3 has 0 on its own rank; 2 moves
  // to slot 0 and 0's home to slot 3.
  const ExpertPlacement to = Make({2, 1, 3, 0, -1, -1});
  ASSERT_OK_AND_ASSIGN(const MovePlan plan,
                       PlanMoves(from, to, {.weights = 100, .state = 10}));
  const std::vector<ExpertMove> want = {
      {What::kWeights, 0, 2, 3, 0, 100}, {What::kState, 0, 2, 3, 0, 10},
      {What::kWeights, 0, 3, 4, 2, 100}, {What::kState, 0, 3, 4, 2, 10},
      {What::kWeights, 0, 0, 5, 3, 0},   {What::kState, 0, 0, 0, 3, 10}};
  EXPECT_EQ(plan.moves, want);
  EXPECT_EQ(plan.total_bytes, 230);
  EXPECT_EQ(plan.max_rank_bytes, 220);
  EXPECT_DOUBLE_EQ(MoveSeconds(plan, 110), 2);
  ASSERT_OK_AND_ASSIGN(const MovePlan none, PlanMoves(to, to, {100, 10}));
  EXPECT_TRUE(none.moves.empty());
  EXPECT_EQ(MoveSeconds(none, 0), 0);
}

TEST(PlanMoves, SpreadsTheSendersOfACopiedExpert) {
  const PlacementShape shape = {
      .num_layers = 2, .num_experts = 2, .num_ranks = 3, .slots_per_rank = 1};
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement from,
                       MakePlacement(shape, {{0, 0, 1}, {0, 0, 1}}, 0));
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement to,
                       MakePlacement(shape, {{0, 1, 0}, {0, 1, 0}}, 1));
  ASSERT_OK_AND_ASSIGN(const MovePlan plan, PlanMoves(from, to, {8, 0}));
  ASSERT_EQ(plan.moves.size(), 4u);
  EXPECT_EQ(plan.moves[1].from_slot, 0);
  EXPECT_EQ(plan.moves[3].from_slot, 1);
}

ReplacementOptions Options() {
  return {.expert_bytes = {.weights = 1000, .state = 0},
          .bytes_per_second = 1000};
}

LoadWindow Skewed() {
  return {.counts = {{900, 500, 100, 100}},
          .steps = 50,
          .steps_left = 10000,
          .expert_seconds_per_step = 1.0};
}

TEST(ReplacementPolicy, AdoptsInTheSecondGoodWindowThenRests) {
  ReplacementPolicy policy(Options(), *PlaceContiguous(kShape));
  ASSERT_OK_AND_ASSIGN(ReplacementDecision d, policy.Observe(Skewed()));
  EXPECT_FALSE(d.adopt);
  EXPECT_FALSE(d.placement.has_value());
  EXPECT_DOUBLE_EQ(d.balancedness_now, 800.0 / 1400.0);
  ASSERT_OK_AND_ASSIGN(d, policy.Observe(Skewed()));
  EXPECT_FALSE(d.adopt);
  EXPECT_THAT(d.reason, HasSubstr("1 of 2 windows"));
  ASSERT_OK_AND_ASSIGN(d, policy.Observe(Skewed()));
  EXPECT_TRUE(d.adopt) << d.reason;
  EXPECT_GT(d.balancedness_new, 0.9);
  EXPECT_EQ(d.placement->plan_epoch, 1);
  EXPECT_NEAR(d.saved_seconds,
              500 * (1 - d.balancedness_now / d.balancedness_new), 1e-9);
  policy.Adopted(*d.placement);

  // The load turns round: two windows of rest, then two that agree.
  LoadWindow turned = Skewed();
  turned.counts = {{1, 1, 9000, 5000}};
  for (int window = 0; window < 2; ++window) {
    ASSERT_OK_AND_ASSIGN(d, policy.Observe(turned));
    EXPECT_FALSE(d.adopt);
    EXPECT_THAT(d.reason, HasSubstr("so soon"));
  }
  int windows = 0;
  do {
    ASSERT_OK_AND_ASSIGN(d, policy.Observe(turned));
    ASSERT_LT(++windows, 10);
  } while (!d.adopt);
  EXPECT_GE(windows, 2);
  EXPECT_EQ(d.placement->plan_epoch, 2);
}

TEST(ReplacementPolicy, AMoveMustPayForItself) {
  ReplacementOptions options = Options();
  LoadWindow window = Skewed();
  const auto adopted = [&window](const ReplacementOptions& with) {
    ReplacementPolicy policy(with, *PlaceContiguous(kShape));
    for (int i = 0; i < 4; ++i) {
      const auto d = policy.Observe(window);
      if (!d.ok() || d->adopt) return d.ok();
    }
    return false;
  };
  EXPECT_TRUE(adopted(options));
  options.bytes_per_second = 1;  // a move of half an hour
  EXPECT_FALSE(adopted(options));
  options = Options();
  window.steps_left = 1;  // the end is near
  EXPECT_FALSE(adopted(options));
  window = Skewed();
  window.counts = {{100, 100, 100, 100}};  // nothing to gain
  EXPECT_FALSE(adopted(options));
  window.counts = {{102, 100, 100, 98}};  // below the least gain
  EXPECT_FALSE(adopted(options));
}

TEST(ReplacementPolicy, IsScoredOnAWindowThatItHasNotSeen) {
  ReplacementPolicy policy(Options(), *PlaceContiguous(kShape));
  ASSERT_OK(policy.Observe(Skewed()).status());
  LoadWindow other = Skewed();
  other.counts = {{500, 500, 700, 300}};
  ASSERT_OK_AND_ASSIGN(const ReplacementDecision d, policy.Observe(other));
  EXPECT_EQ(d.balancedness_now, 1);
  EXPECT_LT(d.balancedness_new, 1);
  EXPECT_LT(d.saved_seconds, 0);
  // The past keeps 0.9 of its weight.
  EXPECT_DOUBLE_EQ(policy.average()[0][0], (0.9 * 18 + 10) / 1.9);
}

// What is left of a window when an attempt ends counts for its steps only.
TEST(ReplacementPolicy, AShortWindowWeighsLess) {
  ReplacementPolicy policy(Options(), *PlaceContiguous(kShape));
  ASSERT_OK(policy.Observe(Skewed()).status());
  LoadWindow stump = Skewed();
  stump.steps = 5;
  stump.counts = {{50, 50, 70, 30}};
  ASSERT_OK(policy.Observe(stump).status());
  EXPECT_DOUBLE_EQ(policy.average()[0][0], (45 * 18.0 + 5 * 10.0) / 50);
  EXPECT_DOUBLE_EQ(policy.average_steps(), 0.9 * 50 + 5);
}

TEST(ReplacementPolicy, CanBeForcedAndRestored) {
  ReplacementPolicy policy(Options(), *PlaceContiguous(kShape));
  EXPECT_THAT(policy.Force(), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(policy.Observe(Skewed()).status());
  ASSERT_OK_AND_ASSIGN(const ReplacementDecision d, policy.Force());
  EXPECT_TRUE(d.adopt);
  ReplacementPolicy other(Options(), *PlaceContiguous(kShape));
  other.Restore(policy.average(), policy.average_steps(), 1, 0);
  ASSERT_OK_AND_ASSIGN(const ReplacementDecision next, other.Observe(Skewed()));
  EXPECT_TRUE(next.adopt);
  other.Adopted(*next.placement);
  EXPECT_EQ(other.hold_off_left(), 2);
  ASSERT_OK_AND_ASSIGN(const ReplacementDecision still, other.Force());
  EXPECT_FALSE(still.adopt) << still.reason;
}

TEST(ReplacementPolicy, RefusesWindowsOfAnotherModel) {
  ReplacementPolicy policy(Options(), *PlaceContiguous(kShape));
  LoadWindow window = Skewed();
  window.counts = {{1, 2}};
  EXPECT_THAT(policy.Observe(window),
              StatusIs(absl::StatusCode::kInvalidArgument));
  window.counts = {};
  EXPECT_THAT(policy.Observe(window),
              StatusIs(absl::StatusCode::kInvalidArgument));
  window = Skewed();
  window.steps = 0;
  EXPECT_THAT(policy.Observe(window),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ReplacementPolicy blind(ReplacementOptions{}, *PlaceContiguous(kShape));
  EXPECT_THAT(blind.Observe(Skewed()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
