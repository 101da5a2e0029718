#include "plan/placement_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

// What a spare slot per rank must reach at a skew of sigma 1, for several
// seeds: balancedness of at least 0.95 where the order of the experts gives
// less than half.
TEST(SimulatePlacement, OneSpareSlotBalancesSkewedRouting) {
  for (const int64_t ranks : {64, 128}) {
    for (const uint64_t seed : {1u, 2u, 3u}) {
      ASSERT_OK_AND_ASSIGN(
          const SimulationResult result,
          SimulatePlacement(
              {.num_layers = 4, .num_ranks = ranks, .seed = seed}));
      EXPECT_LT(result.contiguous, 0.6) << ranks << " " << seed;
      EXPECT_GT(result.greedy, result.contiguous) << ranks << " " << seed;
      EXPECT_GE(result.eplb, 0.95) << ranks << " " << seed;
      EXPECT_GT(result.eplb_drifted, 0.85) << ranks << " " << seed;
      EXPECT_LT(result.eplb_drifted, result.eplb) << ranks << " " << seed;
    }
  }
}

TEST(SimulatePlacement, IsTheSameForTheSameSeed) {
  const SimulationOptions options = {.num_layers = 1, .num_ranks = 16};
  ASSERT_OK_AND_ASSIGN(const SimulationResult a, SimulatePlacement(options));
  ASSERT_OK_AND_ASSIGN(const SimulationResult b, SimulatePlacement(options));
  EXPECT_EQ(a.eplb, b.eplb);
  EXPECT_EQ(a.contiguous_drifted, b.contiguous_drifted);
  SimulationOptions other = options;
  other.seed = 2;
  ASSERT_OK_AND_ASSIGN(const SimulationResult c, SimulatePlacement(other));
  EXPECT_NE(a.contiguous, c.contiguous);
}

TEST(SimulatePlacement, RefusesRanksThatDoNotDivide) {
  EXPECT_FALSE(SimulatePlacement({.num_ranks = 60}).ok());
  EXPECT_FALSE(SimulatePlacement({.num_ranks = 0}).ok());
}

}  // namespace
}  // namespace cadre
