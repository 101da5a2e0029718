#include "kernels/linear_attention/schedule.h"

#include <gtest/gtest.h>

#include "kernels/linear_attention/workspace.h"

namespace cadre::linear_attention {
namespace {

constexpr int kDevice = 132;

TEST(PlanOverlap, TheScanGetsNoMoreThanItsBlocksOrHalfTheDevice) {
  EXPECT_EQ(PlanOverlap(64, kDevice, kPrepareTileCost).leaving, 64);
  EXPECT_EQ(PlanOverlap(8, kDevice, kPrepareTileCost).leaving, 8);
  EXPECT_EQ(PlanOverlap(4096, kDevice, kPrepareTileCost).leaving, 66);
}

TEST(PlanOverlap, PreparationKeepsAheadOfTheScan) {
  for (const double cost : {kPrepareTileCost, kHeadPrepareTileCost}) {
    for (const int64_t blocks : {2, 16, 32, 64, 500}) {
      const Overlap plan = PlanOverlap(blocks, kDevice, cost);
      ASSERT_GE(plan.leave_share, 0);
      ASSERT_LE(plan.leave_share, 1);
      // For a tile of the document: what the rest takes to prepare, and what
      // all take to scan.
      const double prepare =
          (1 - plan.leave_share) * cost / (kDevice - plan.leaving);
      const double scan = 2 * kScanChunkCost / plan.leaving;
      EXPECT_LE(prepare, scan * 1.0001) << blocks;
    }
  }
}

TEST(PlanOverlap, FewHeadsAreScannedFromTheStart) {
  EXPECT_EQ(PlanOverlap(16, kDevice, kHeadPrepareTileCost).leave_share, 0);
  EXPECT_GT(PlanOverlap(64, kDevice, kPrepareTileCost).leave_share, 0.5);
}

TEST(PlanOverlap, ADeviceOfOneMultiprocessorPreparesFirst) {
  const Overlap plan = PlanOverlap(64, 1, kPrepareTileCost);
  EXPECT_EQ(plan.leaving, 0);
  EXPECT_EQ(plan.leave_share, 1);
}

TEST(Workspace, CountsProgressForEachTileAndGroup) {
  const WorkShape shape{1000, 40, 40, 3, true};
  EXPECT_EQ(ProgressWords(shape), MaxChunks(shape) * 32 + 2);
  EXPECT_EQ(ProgressWords({1000, 0, 1, 3, true}), 0);
}

}  // namespace
}  // namespace cadre::linear_attention
