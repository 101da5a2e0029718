#include "plan/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

int64_t Capacity(const CapacityOptions& options) {
  const auto capacity = ExpertCapacity(options);
  return capacity.ok() ? *capacity : -1;
}

TEST(ExpertCapacity, OfTheLargestModel) {
  EXPECT_EQ(Capacity({.tokens = 8192, .top_k = 16, .num_experts = 896}), 183);
  const DispatchShape shape = {.tokens = 8192,
                               .top_k = 16,
                               .num_experts = 896,
                               .num_ranks = 64,
                               .slots_per_rank = 14};
  EXPECT_EQ(BoundsAtCapacity(shape, 183).expert_rows, 163968);
}

TEST(ExpertCapacity, LiesBetweenTheLeastAndAllTokens) {
  CapacityOptions options = {
      .tokens = 100, .top_k = 2, .num_experts = 20, .capacity_factor = 1.0};
  EXPECT_EQ(Capacity(options), 10);
  options.capacity_factor = 1.1;  // 11.000000000000002
  EXPECT_EQ(Capacity(options), 11);
  options.min_capacity = 16;
  EXPECT_EQ(Capacity(options), 16);
  options.min_capacity = 1000;
  EXPECT_EQ(Capacity(options), 100);
  options.min_capacity = 1;
  options.num_experts = 2;
  EXPECT_EQ(Capacity(options), 100);
  options.tokens = 1;
  EXPECT_EQ(Capacity(options), 1);
}

TEST(ExpertCapacity, RefusesWhatCannotBe) {
  EXPECT_THAT(ExpertCapacity({.tokens = 0, .top_k = 1, .num_experts = 1}),
              StatusIs(kInvalid, HasSubstr("0 tokens")));
  EXPECT_THAT(
      ExpertCapacity(
          {.tokens = 8, .top_k = 1, .num_experts = 1, .capacity_factor = 0.5}),
      StatusIs(kInvalid, HasSubstr("capacity_factor is 0.5")));
}

TEST(DedupRows, MatchThePublishedTable) {
  EXPECT_NEAR(DedupRowsPerToken(8, 16), 7.06, 0.005);
  EXPECT_NEAR(DedupRowsPerToken(16, 16), 10.30, 0.005);
  EXPECT_NEAR(DedupRowsPerToken(64, 16), 14.26, 0.005);
  EXPECT_NEAR(DedupRowsPerToken(8, 8), 5.25, 0.005);
  EXPECT_NEAR(DedupRowsPerToken(16, 8), 6.45, 0.005);
  EXPECT_NEAR(DedupRowsPerToken(64, 8), 7.58, 0.005);
  EXPECT_EQ(DedupRowsPerToken(1, 8), 1);
  // 2 of 4 experts on 2 ranks: 1 of the 6 pairs misses a given rank.
  EXPECT_DOUBLE_EQ(DedupRowsPerTokenExact(2, 2, 4), 2 * (1 - 1.0 / 6));
  EXPECT_DOUBLE_EQ(DedupRowsPerTokenExact(1, 2, 4), 1);
  EXPECT_DOUBLE_EQ(DedupRowsPerTokenExact(2, 4, 4), 2);
  EXPECT_NEAR(DedupRowsPerTokenExact(8, 16, 896), 7.073, 0.001);
}

TEST(Bounds, ClimbTheLadderToWhatCannotOverflow) {
  const DispatchShape shape = {.tokens = 1000,
                               .top_k = 4,
                               .num_experts = 32,
                               .num_ranks = 8,
                               .slots_per_rank = 5};
  DispatchBounds last;
  for (int rung = 0; rung <= kFullRung; ++rung) {
    const DispatchBounds bounds = BoundsAtRung(shape, rung);
    EXPECT_GT(bounds.expert_rows, last.expert_rows) << rung;
    EXPECT_GE(bounds.segment_rows, last.segment_rows) << rung;
    EXPECT_GE(bounds.receive_rows, last.receive_rows) << rung;
    last = bounds;
  }
  EXPECT_EQ(last.segment_rows, 1000);
  EXPECT_EQ(last.receive_rows, 8000);
  EXPECT_EQ(last.expert_rows, 32000);
  EXPECT_EQ(BoundsAtRung(shape, 0).expert_rows, 5000);
  EXPECT_DOUBLE_EQ(HeadroomOfRung(shape, 1), 1.5);
  EXPECT_NEAR(HeadroomOfRung(shape, kFullRung),
              8000 / (1000 * DedupRowsPerToken(8, 4)), 1e-12);
  // One rank: nothing is ever too small.
  DispatchShape one = shape;
  one.num_ranks = 1;
  one.slots_per_rank = 2;
  EXPECT_EQ(BoundsAtRung(one, 0).segment_rows, 1000);
  EXPECT_EQ(BoundsAtRung(one, 0).expert_rows, 2000);
}

TEST(DispatchBytes, OfTheLargestModel) {
  DispatchShape shape = {.tokens = 8192,
                         .top_k = 16,
                         .num_experts = 896,
                         .num_ranks = 64,
                         .slots_per_rank = 14};
  const AllToAllBytes bytes = DispatchBytes(shape, 3584, 2);
  EXPECT_NEAR(bytes.payload, 0.84e9, 0.005e9);
  EXPECT_NEAR(DispatchBytes(shape, 7168, 2).payload, 1.67e9, 0.005e9);
  EXPECT_NEAR(bytes.wire, bytes.payload * 63 / 64, 1);
  EXPECT_EQ(bytes.metadata, 8192 * 16 * 8);
  // One copy per node.
  shape.num_ranks = 8;
  EXPECT_NEAR(DispatchBytes(shape, 3584, 2).payload, 0.415e9, 0.001e9);
}

}  // namespace
}  // namespace cadre
