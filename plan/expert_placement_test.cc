#include "plan/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The published example of EPLB: 12 experts, 16 slots, 4 groups, 2 nodes, 8
// ranks.
const ExpertLoads kLoads = {
    {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
    {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
const PlacementShape kShape = {
    .num_layers = 2, .num_experts = 12, .num_ranks = 8, .slots_per_rank = 2};

TEST(Place, ReproducesThePublishedExample) {
  ASSERT_OK_AND_ASSIGN(
      const ExpertPlacement p,
      Place(kLoads, {.shape = kShape, .num_groups = 4, .num_nodes = 2}));
  EXPECT_THAT(p.layers[0].slot_to_expert,
              ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(p.layers[1].slot_to_expert,
              ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
  EXPECT_THAT(RankLoads(p, 0, kLoads[0]),
              ElementsAre(121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152));
  EXPECT_NEAR(LayerBalancedness(p, 0, kLoads[0]), 0.8277, 5e-5);
  EXPECT_NEAR(LayerBalancedness(p, 1, kLoads[1]), 0.8050, 5e-5);
}

TEST(Place, TheGlobalFormBalancesBetter) {
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement p,
                       Place(kLoads, {.shape = kShape, .plan_epoch = 7}));
  EXPECT_EQ(p.plan_epoch, 7);
  EXPECT_THAT(p.layers[0].slot_to_expert,
              ElementsAre(10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1));
  EXPECT_THAT(p.layers[1].slot_to_expert,
              ElementsAre(1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7));
  EXPECT_NEAR(LayerBalancedness(p, 0, kLoads[0]), 0.9323, 5e-5);
  EXPECT_NEAR(LayerBalancedness(p, 1, kLoads[1]), 0.8401, 5e-5);
  // Groups that do not divide over the nodes fall back to it.
  ASSERT_OK_AND_ASSIGN(
      const ExpertPlacement odd,
      Place(
          kLoads,
          {.shape = kShape, .num_groups = 3, .num_nodes = 2, .plan_epoch = 7}));
  EXPECT_EQ(odd, p);
}

TEST(Place, TablesAreConsistent) {
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement p,
                       Place(kLoads, {.shape = kShape}));
  EXPECT_EQ(p.max_copies, 2);
  EXPECT_EQ(p.layers[0].slot_count[10], 2);
  EXPECT_EQ(p.SlotOfCopy(0, 10, 1), 2);
  EXPECT_EQ(p.HomeSlot(0, 10), 0);
  EXPECT_EQ(p.RankOfSlot(2), 1);
  EXPECT_EQ(p.layers[0].expert_to_slots[6 * 2 + 1], -1);
  // Rows of one rank alternate over the copies, beginning at another copy on
  // the next rank.
  EXPECT_EQ(SlotOfRow(p, 0, 10, 0, 0), 0);
  EXPECT_EQ(SlotOfRow(p, 0, 10, 0, 1), 2);
  EXPECT_EQ(SlotOfRow(p, 0, 10, 1, 0), 2);
  EXPECT_EQ(SlotOfRow(p, 0, 6, 5, 9), 1);
}

TEST(Place, EqualLoadsGoByIndex) {
  const PlacementShape shape = {
      .num_layers = 1, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 3};
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement p,
                       Place({{1, 1, 1, 1}}, {.shape = shape}));
  EXPECT_THAT(p.layers[0].slot_to_expert, ElementsAre(2, 0, 0, 3, 1, 1));
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement none,
                       Place({{0, 0, 0, 0}}, {.shape = shape}));
  EXPECT_EQ(none.layers[0].slot_count[0], 3);
}

TEST(Place, WithoutReplicasSpareSlotsStayEmpty) {
  const PlacementShape shape = {
      .num_layers = 1, .num_experts = 5, .num_ranks = 2, .slots_per_rank = 4};
  ASSERT_OK_AND_ASSIGN(
      const ExpertPlacement p,
      Place({{9, 1, 1, 1, 4}}, {.shape = shape, .replicate = false}));
  EXPECT_EQ(p.max_copies, 1);
  EXPECT_THAT(p.layers[0].slot_count, Each(1));
  EXPECT_THAT(RankLoads(p, 0, {9, 1, 1, 1, 4}), ElementsAre(9, 7));
}

TEST(PlaceContiguous, SplitsAnyNumberEvenly) {
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement p,
                       PlaceContiguous({.num_layers = 1,
                                        .num_experts = 5,
                                        .num_ranks = 2,
                                        .slots_per_rank = 3}));
  EXPECT_THAT(p.layers[0].slot_to_expert, ElementsAre(0, 1, -1, 2, 3, 4));
  EXPECT_EQ(p.HomeSlot(0, 2), 3);
}

TEST(Placement, ErrorsCarryTheNumbers) {
  EXPECT_THAT(PlaceContiguous({1, 900, 64, 14}),
              StatusIs(kInvalid, AllOf(HasSubstr("64 ranks x 14"),
                                       HasSubstr("at least 15"))));
  EXPECT_THAT(PlaceContiguous({1, 4, 2, 0}), StatusIs(kInvalid));
  EXPECT_THAT(Place(kLoads, {.shape = kShape, .num_groups = 5}),
              StatusIs(kInvalid, HasSubstr("12 experts")));
  EXPECT_THAT(Place(kLoads, {.shape = kShape, .num_nodes = 3}),
              StatusIs(kInvalid, HasSubstr("8 expert-parallel ranks")));
  EXPECT_THAT(Place({kLoads[0]}, {.shape = kShape}),
              StatusIs(kInvalid, HasSubstr("loads of 1 layers")));
  ExpertLoads bad = kLoads;
  bad[1][3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Place(bad, {.shape = kShape}),
              StatusIs(kInvalid, HasSubstr("layer 1")));
  const PlacementShape two = {1, 2, 2, 1};
  EXPECT_THAT(MakePlacement(two, {{0, 0}}, 1),
              StatusIs(kInvalid, HasSubstr("expert 1 of layer 0")));
  EXPECT_THAT(MakePlacement(two, {{0, 2}}, 1), StatusIs(kInvalid));
  EXPECT_THAT(MakePlacement(two, {{0, 1, -1}}, 1), StatusIs(kInvalid));
  EXPECT_THAT(MakePlacement(two, {}, 1), StatusIs(kInvalid));
}

// Slots whose expert must be brought from elsewhere.
int64_t Moved(const ExpertPlacement& a, const ExpertPlacement& b) {
  int64_t moved = 0;
  for (size_t l = 0; l < a.layers.size(); ++l) {
    for (size_t s = 0; s < a.layers[l].slot_to_expert.size(); ++s) {
      moved += a.layers[l].slot_to_expert[s] != b.layers[l].slot_to_expert[s]
                   ? 1
                   : 0;
    }
  }
  return moved;
}

TEST(KeepInPlace, AnEquallyGoodPlanMovesNothing) {
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement p,
                       Place(kLoads, {.shape = kShape}));
  // The same with ranks renamed and slots reordered.
  std::vector<std::vector<int32_t>> slots;
  for (const LayerPlacement& layer : p.layers) {
    slots.push_back(layer.slot_to_expert);
    std::reverse(slots.back().begin(), slots.back().end());
  }
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement q,
                       MakePlacement(kShape, slots, 3));
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement kept,
                       KeepInPlace(p, q, kLoads, 1));
  EXPECT_EQ(kept.plan_epoch, 3);
  EXPECT_EQ(Moved(p, kept), 0);
}

TEST(KeepInPlace, MovesFewerExpertsForTheSameBalance) {
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> skew(0.0, 1.0);
  const PlacementShape shape = {
      .num_layers = 2, .num_experts = 64, .num_ranks = 8, .slots_per_rank = 9};
  ExpertLoads before(2, std::vector<double>(64)), after = before;
  for (int l = 0; l < 2; ++l) {
    for (int e = 0; e < 64; ++e) {
      before[l][e] = skew(random);
      after[l][e] = before[l][e] * (1.0 + 0.2 * skew(random));
    }
  }
  for (const int nodes : {1, 2}) {
    const PlaceOptions options = {
        .shape = shape, .num_groups = 4, .num_nodes = nodes};
    ASSERT_OK_AND_ASSIGN(const ExpertPlacement now, Place(before, options));
    ASSERT_OK_AND_ASSIGN(const ExpertPlacement next, Place(after, options));
    ASSERT_OK_AND_ASSIGN(const ExpertPlacement kept,
                         KeepInPlace(now, next, after, nodes));
    EXPECT_LT(Moved(now, kept), Moved(now, next));
    EXPECT_DOUBLE_EQ(Balancedness(kept, after), Balancedness(next, after));
    EXPECT_GT(Balancedness(kept, after), Balancedness(now, after));
  }
}

TEST(KeepInPlace, RefusesAnotherShape) {
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement a, PlaceContiguous({1, 4, 2, 2}));
  ASSERT_OK_AND_ASSIGN(const ExpertPlacement b, PlaceContiguous({1, 4, 2, 3}));
  EXPECT_THAT(KeepInPlace(a, b, {{1, 1, 1, 1}}, 1), StatusIs(kInvalid));
  EXPECT_THAT(KeepInPlace(a, a, {{1, 1, 1, 1}}, 3), StatusIs(kInvalid));
  EXPECT_THAT(KeepInPlace(a, a, {}, 1), StatusIs(kInvalid));
}

}  // namespace
}  // namespace cadre
