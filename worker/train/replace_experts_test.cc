// Experts that move while a model is trained: nothing that is learned may
// depend on where they lie.

#include "worker/train/replace_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "plan/expert_placement.h"
#include "worker/checkpoint/manifest.h"
#include "worker/train/trainer_fixture.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using PlacementPtr = std::shared_ptr<const ExpertPlacement>;

struct Layout {
  int ranks, shards, experts;
};
// The last two have two replicas of the experts, which share the optimizer.
constexpr Layout kLayouts[] = {
    {2, 1, 2}, {4, 1, 4}, {4, 2, 4}, {4, 1, 2}, {4, 2, 2}};

class ReplaceExpertsTest : public TrainerTest {
 protected:
  static constexpr int kSpare = 1;

  TrainerOptions OptionsOf(const Layout& layout,
                           TuningOptions::Method method) const {
    TrainerOptions options = Options(layout.ranks, method);
    options.mesh.fsdp_shard_group_size = layout.shards;
    options.mesh.expert_parallel_size = layout.experts;
    options.moe.spare_slots_per_rank = kSpare;
    options.training.max_steps = 6;
    return options;
  }

  // No rank goes on; the first that fails may cut the others short.
  static std::string Errors(const std::vector<std::unique_ptr<RankRun>>& runs) {
    std::string text;
    for (const auto& run : runs) {
      EXPECT_FALSE(run->status.ok());
      EXPECT_THAT(run->observer.moved, ::testing::IsEmpty());
      absl::StrAppend(&text, run->status.ToString(), "\n");
    }
    return text;
  }

  // EPLB for a load that makes one of the tiny model's four experts hot.
  static PlacementPtr Hot(const Layout& layout, int expert, int64_t epoch) {
    std::vector<double> load = {4, 3, 2, 1};
    load[expert] = 40;
    auto placement =
        Place({load}, {.shape = {.num_layers = 1,
                                 .num_experts = 4,
                                 .num_ranks = layout.experts,
                                 .slots_per_rank = 4 / layout.experts + kSpare},
                       .plan_epoch = epoch});
    EXPECT_OK(placement);
    return std::make_shared<ExpertPlacement>(*std::move(placement));
  }
};

TEST_F(ReplaceExpertsTest, MovingWhileTrainingChangesNothingButRounding) {
  for (const auto method : {kLora, kFull}) {
    TrainerOptions alone = Options(1, method);
    alone.training.max_steps = 6;
    const auto still = Run(alone);
    ASSERT_OK(still[0]->status);
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts,
                                method == kFull ? ", full" : ", lora"));
      // The ranks hear of a placement at different steps.
      const auto moving = Run(OptionsOf(layout, method), -1, nullptr,
                              [&](int rank, Recorder& r) {
                                r.wanted[1 + rank % 2] = Hot(layout, 0, 1);
                                r.wanted[4 - rank % 2] = Hot(layout, 3, 5);
                              });
      for (const auto& run : moving) {
        ASSERT_OK(run->status);
        ASSERT_THAT(run->observer.moved, SizeIs(2));
        EXPECT_EQ(run->observer.moved[0].step, 2);
        EXPECT_EQ(run->observer.moved[1].step, 4);
        EXPECT_EQ(run->observer.moved[1].placement->plan_epoch, 5);
        EXPECT_EQ(run->observer.steps[1].plan_epoch, 0);
        EXPECT_EQ(run->observer.steps[2].plan_epoch, 1);
        EXPECT_EQ(run->observer.steps[5].plan_epoch, 5);
        EXPECT_GT(run->observer.moved[0].max_rank_bytes, 0);
        EXPECT_GT(run->observer.expert_size.bytes, 0);
        EXPECT_GT(run->observer.expert_size.state_bytes, 0);
        ExpectSameTraining(*still[0], *run);
      }
    }
  }
}

TEST_F(ReplaceExpertsTest, RanksCountWhatTheyCompute) {
  const Layout layout{4, 1, 4};
  const auto runs =
      Run(OptionsOf(layout, kLora), -1, nullptr,
          [&](int, Recorder& r) { r.wanted[3] = Hot(layout, 0, 1); });
  for (const auto& run : runs) {
    ASSERT_OK(run->status);
    for (const StepMetrics& step : run->observer.steps) {
      ASSERT_THAT(step.rank_tokens, SizeIs(1));
      ASSERT_THAT(step.rank_tokens[0], SizeIs(4));
      EXPECT_GT(step.expert_seconds, 0);
      int64_t experts = 0, ranks = 0;
      for (const int64_t n : step.expert_tokens[0]) experts += n;
      for (const int64_t n : step.rank_tokens[0]) ranks += n;
      EXPECT_EQ(experts, ranks);
      // One expert per rank, in order, as long as nothing has moved.
      if (step.step <= 3) {
        EXPECT_EQ(step.rank_tokens, step.expert_tokens);
      }
    }
    EXPECT_NE(run->observer.steps[3].rank_tokens,
              run->observer.steps[3].expert_tokens);
  }
}

TEST_F(ReplaceExpertsTest, ACheckpointKnowsWhereExpertsLayAndNeedsItNot) {
  for (const auto method : {kLora, kFull}) {
    for (const Layout& layout : {Layout{4, 1, 4}, Layout{4, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat("EP ", layout.experts,
                                method == kFull ? ", full" : ", lora"));
      TrainerOptions options = OptionsOf(layout, method);
      const PlacementPtr hot = Hot(layout, 1, 3);
      const auto move = [&](int, Recorder& r) { r.wanted[1] = hot; };
      const auto whole = Run(options, -1, nullptr, move);
      ASSERT_OK(whole[0]->status);
      options.checkpoint.dir =
          absl::StrCat(root_, "/", layout.experts, method == kFull);
      options.checkpoint.seal_by_trainer = true;
      const auto half = Run(options, /*stop_at=*/3, nullptr, move);
      ASSERT_OK(half[0]->status);
      const std::string saved = half[0]->observer.sealed.at(3);
      ASSERT_OK_AND_ASSIGN(
          const std::string text,
          ReadFile(absl::StrCat(saved, "/", CheckpointManifest::kFileName)));
      ASSERT_OK_AND_ASSIGN(const CheckpointManifest manifest,
                           CheckpointManifest::Parse(text));
      ASSERT_TRUE(manifest.placement.has_value());
      EXPECT_EQ(*manifest.placement, *hot);

      options.checkpoint.resume_path = saved;
      options.checkpoint.dir.clear();
      // Where they lay: the same bits.
      options.moe.placement = hot;
      const auto same = Run(options);
      ASSERT_OK(same[0]->status);
      ExpectBitwiseEqual(*whole[0], 3, *same[0]);
      // In order, and without a spare slot: the same up to rounding.
      options.moe.placement = nullptr;
      for (const int spare : {kSpare, 0}) {
        options.moe.spare_slots_per_rank = spare;
        const auto other = Run(options);
        ASSERT_OK(other[0]->status);
        ASSERT_THAT(other[0]->observer.steps, SizeIs(3));
        for (int i = 0; i < 3; ++i) {
          const double loss = whole[0]->observer.steps[3 + i].loss;
          EXPECT_NEAR(other[0]->observer.steps[i].loss, loss, 2e-5 * loss);
        }
      }
    }
  }
}

TEST_F(ReplaceExpertsTest, NoRankMovesBeforeAllHoldThePlacement) {
  const Layout layout{2, 1, 2};
  const auto runs =
      Run(OptionsOf(layout, kLora), -1, nullptr, [&](int rank, Recorder& r) {
        if (rank == 0) r.wanted[0] = Hot(layout, 0, 1);
      });
  for (const auto& run : runs) {
    ASSERT_OK(run->status);
    EXPECT_THAT(run->observer.moved, SizeIs(0));
  }
}

TEST_F(ReplaceExpertsTest, StaleAndForeignPlacementsAreRefused) {
  const Layout layout{2, 1, 2};
  TrainerOptions options = OptionsOf(layout, kLora);
  options.moe.placement = Hot(layout, 0, 7);
  // Not newer than the one in force.
  auto runs = Run(options, -1, nullptr,
                  [&](int, Recorder& r) { r.wanted[1] = Hot(layout, 1, 7); });
  for (const auto& run : runs) {
    ASSERT_OK(run->status);
    EXPECT_THAT(run->observer.moved, SizeIs(0));
    EXPECT_EQ(run->observer.placed->plan_epoch, 7);
  }
  // Two placements under one number.
  runs = Run(options, -1, nullptr, [&](int rank, Recorder& r) {
    r.wanted[1] = Hot(layout, rank, 8);
  });
  EXPECT_THAT(Errors(runs), HasSubstr("do not hold the same plans"));
  // Another shape.
  runs = Run(options, -1, nullptr,
             [&](int, Recorder& r) { r.wanted[1] = Hot({4, 1, 4}, 0, 8); });
  EXPECT_THAT(Errors(runs), HasSubstr("does not fit the model"));
}

}  // namespace
}  // namespace cadre
