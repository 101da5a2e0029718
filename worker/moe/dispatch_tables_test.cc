#include "worker/moe/dispatch_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kLast = SendTables::kLastPair;

TEST(ChooseSlotsTest, SpreadsRowsOverCopiesByCount) {
  // 3 experts in 2 x 2 slots: expert 1 lies in slots 1 and 2.
  const ExpertPlacement placement = MakePlacement({.num_layers = 1,
                                                   .num_experts = 3,
                                                   .num_ranks = 2,
                                                   .slots_per_rank = 2},
                                                  {{0, 1, 1, 2}}, 1)
                                        .value();
  std::vector<int32_t> slots;
  const std::vector<int32_t> ids = {1, 0, -1, -1, 2, 1, 1, 0};
  ChooseSlots(ids, placement, 0, /*ep_rank=*/0, &slots);
  EXPECT_THAT(slots, ElementsAre(1, 0, -1, -1, 3, 2, 1, 0));
  ChooseSlots(ids, placement, 0, /*ep_rank=*/1, &slots);
  EXPECT_THAT(slots, ElementsAre(2, 0, -1, -1, 3, 1, 2, 0));
}

TEST(SendTablesTest, OneRowPerTokenAndRank) {
  SendTables send;
  // Two slots a rank: token 0 has both pairs on rank 1, token 1 one on each of
  // ranks 2 and 0, token 2 is padding.
  BuildSendTables({3, 2, 5, 0, -1, -1}, /*top_k=*/2, /*num_ranks=*/3,
                  /*slots_per_rank=*/2, &send);
  EXPECT_EQ(send.fan_out, 2);
  EXPECT_THAT(send.destinations, ElementsAre(1, -1, 0, 2, -1, -1));
  EXPECT_THAT(send.rows, ElementsAre(1, 1, 1));
  EXPECT_THAT(send.pairs, ElementsAre(1, 2, 1));
  EXPECT_THAT(send.pair_source, ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(send.pair_slot, ElementsAre(0 + kLast, 0, 1 + kLast, 1 + kLast));
}

TEST(SendTablesTest, NoTokens) {
  SendTables send;
  BuildSendTables({}, 2, 3, 2, &send);
  EXPECT_EQ(send.num_rows(), 0);
  EXPECT_EQ(send.num_pairs(), 0);
}

TEST(ReceiveTablesTest, ListsThePairsOfEachRow) {
  ReceiveTables received;
  ASSERT_TRUE(BuildReceiveTables({0, 2 + kLast, 1 + kLast}, /*num_rows=*/2,
                                 /*width=*/2, /*slots_per_rank=*/3, &received));
  EXPECT_THAT(received.slots, ElementsAre(0, 2, 1, -1));
  EXPECT_THAT(received.pair_place, ElementsAre(0, 1, 2));
}

TEST(ReceiveTablesTest, RefusesWhatDoesNotFit) {
  ReceiveTables received;
  EXPECT_FALSE(BuildReceiveTables({0, 2}, 1, 2, 3, &received));  // no end
  EXPECT_FALSE(BuildReceiveTables({0 + kLast}, 2, 2, 3, &received));
  EXPECT_FALSE(BuildReceiveTables({3 + kLast}, 1, 2, 3, &received));
  EXPECT_FALSE(BuildReceiveTables({0, 1, 2 + kLast}, 1, 2, 3, &received));
}

}  // namespace
}  // namespace cadre
