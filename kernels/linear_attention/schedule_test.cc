#include "kernels/linear_attention/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

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

WorkShape Shape(int64_t tokens, int64_t heads, int64_t docs) {
  return {tokens, heads, heads, docs, true};
}

TEST(Segments, LongDocumentsOfFewHeadsFillTheDevice) {
  for (const int64_t heads : {1, 2, 3, 4, 8, 12}) {
    const WorkShape shape = Shape(131072, heads, 1);
    const Segments plan = PlanSegments(shape);
    const int64_t parts = (131072 / 64 + plan.chunks - 1) / plan.chunks;
    EXPECT_LE(parts * heads * 2, kSegmentBlocks) << heads;
    EXPECT_GE(parts * heads * 2, kSegmentBlocks * 3 / 4) << heads;
    EXPECT_LE(parts, plan.max);
    EXPECT_LT(parts, plan.slots);
  }
}

TEST(Segments, ManyHeadsAndShortDocumentsStayWhole) {
  EXPECT_EQ(PlanSegments(Shape(131072, kFewHeadsBackward + 1, 1)).chunks, 0);
  EXPECT_EQ(PlanSegments(Shape(1000, 1, 1)).chunks, 0);
  EXPECT_EQ(PlanSegments(Shape(1000, 1, 5)).max, 5);
  EXPECT_EQ(PlanSegments(Shape(1000, 0, 5)).max, 5);
}

// As the device counts them (tables.cuh): slot = segment - document.
TEST(Segments, WhateverTheDocumentsAllHaveRoom) {
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{131072},
                                         {65536, 65536},
                                         {1, 100000, 1, 31069},
                                         {0, 0, 131072, 0},
                                         std::vector<int64_t>(64, 2048),
                                         std::vector<int64_t>(5000, 26)}) {
    int64_t tokens = 0, segments = 0;
    for (const int64_t length : lengths) tokens += length;
    const int64_t docs = static_cast<int64_t>(lengths.size());
    for (const int64_t heads : {1, 3, 8}) {
      const Segments plan = PlanSegments(Shape(tokens, heads, docs));
      ASSERT_GT(plan.chunks, 0);
      segments = 0;
      for (const int64_t length : lengths) {
        const int64_t chunks = (length + 63) / 64;
        segments +=
            std::max<int64_t>(1, (chunks + plan.chunks - 1) / plan.chunks);
      }
      EXPECT_LE(segments, plan.max);
      EXPECT_LT(segments - docs, plan.slots);
    }
  }
}

TEST(Workspace, HasRoomForTheEndsOfSegments) {
  const WorkLayout parted = LayOutWork(Shape(131072, 4, 1));
  EXPECT_GE(parted.bytes - parted.carry,
            PlanSegments(Shape(131072, 4, 1)).slots * 4 * 128 * 128 * 4);
  EXPECT_EQ(LayOutWork(Shape(131072, 32, 1)).ends, -1);
  WorkShape forward = Shape(131072, 4, 1);
  forward.backward = false;
  EXPECT_GE(LayOutWork(forward).carry_t, 0);
  EXPECT_EQ(LayOutWork(forward).carry, -1);
}

TEST(Workspace, CountsProgressForEachTileAndGroup) {
  const WorkShape shape{1000, 40, 40, 3, true};
  EXPECT_EQ(ProgressWords(shape), MaxChunks(shape) * 32 + 2);
  EXPECT_EQ(ProgressWords({1000, 0, 1, 3, true}), 0);
}

}  // namespace
}  // namespace cadre::linear_attention
