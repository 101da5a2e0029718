// What keeps the load of experts even, on GPUs: experts that move while a model
// is trained, and experts that take no more than their capacity.

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/expert_placement.h"
#include "tests/gpu/mesh_fixture.h"

namespace cadre {
namespace {

using ::testing::SizeIs;
using PlacementPtr = std::shared_ptr<const ExpertPlacement>;

class ExpertBalanceCudaTest : public MeshCudaFixture,
                              public ::testing::WithParamInterface<DType> {
 protected:
  ExpertBalanceCudaTest() : MeshCudaFixture(GetParam()) {}

  // EPLB for a load that makes one of the eight experts hot in both layers.
  static PlacementPtr Hot(const TrainerOptions& o, int expert, int64_t epoch) {
    std::vector<double> load = {8, 7, 6, 5, 4, 3, 2, 1};
    load[expert] = 60;
    const int ranks = o.mesh.expert_parallel_size;
    return std::make_shared<ExpertPlacement>(testing::Must(Place(
        {load, load},
        {.shape = {.num_layers = 2,
                   .num_experts = 8,
                   .num_ranks = ranks,
                   .slots_per_rank = 8 / ranks + o.moe.spare_slots_per_rank},
         .plan_epoch = epoch})));
  }
};

TEST_P(ExpertBalanceCudaTest, MovingWhileTrainingChangesNothingButRounding) {
  for (const auto method : {kLora, kFull}) {
    TrainerOptions options = OptionsOf({}, method);
    options.training.max_steps = 6;
    const auto still = RunOnGpus(options);
    ASSERT_OK(still[0]->status);
    for (const Layout& layout :
         {Layout{2, 1, 2}, Layout{2, 2, 2}, Layout{4, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts, ", ",
                                method == kFull ? "full" : "lora"));
      options = OptionsOf(layout, method);
      options.training.max_steps = 6;
      options.moe.spare_slots_per_rank = 1;
      const auto moving = RunOnGpus(options, -1, [&](int rank, Recorder& r) {
        r.wanted[1 + rank % 2] = Hot(options, 0, 1);
        r.wanted[4 - rank % 2] = Hot(options, 3, 5);
      });
      for (const auto& run : moving) {
        ASSERT_OK(run->status);
        ASSERT_THAT(run->observer.moved, SizeIs(2));
        EXPECT_EQ(run->observer.moved[1].placement->plan_epoch, 5);
        EXPECT_EQ(run->observer.steps[5].plan_epoch, 5);
        EXPECT_GT(run->observer.moved[0].max_rank_bytes, 0);
        ExpectSameLosses(*still[0], 0, *run);
      }
    }
  }
}

// A capacity holds for a source rank's tokens, so ranks that share out the
// experts do to the same tokens what ranks with all experts do.
TEST_P(ExpertBalanceCudaTest, CapacitiesDoNotDependOnWhereExpertsLie) {
  for (const OverflowPolicy policy :
       {OverflowPolicy::kDropByWeight, OverflowPolicy::kDropByPosition,
        OverflowPolicy::kRemap}) {
    const auto with = [&](const Layout& layout) {
      TrainerOptions options = OptionsOf(layout, kLora);
      options.moe.overflow = policy;
      options.moe.capacity_factor = 1.0;
      return RunOnGpus(options);
    };
    const auto alone = with({2, 1, 1});
    ASSERT_OK(alone[0]->status);
    int64_t touched = 0;
    for (const StepMetrics& step : alone[0]->observer.steps) {
      touched += step.dropped_pairs + step.remapped_pairs;
    }
    EXPECT_GT(touched, 0);
    for (const Layout& layout : {Layout{2, 1, 2}, Layout{2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat("policy ", static_cast<int>(policy), ", ",
                                layout.shards, " shards"));
      for (const auto& run : with(layout)) {
        ASSERT_OK(run->status);
        ExpectSameLosses(*alone[0], 0, *run);
        const StepMetrics& a = alone[0]->observer.steps[0];
        const StepMetrics& b = run->observer.steps[0];
        EXPECT_EQ(a.dropped_pairs, b.dropped_pairs);
        EXPECT_EQ(a.remapped_pairs, b.remapped_pairs);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertBalanceCudaTest,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return info.param == DType::kF32 ? "f32" : "bf16";
                         });

}  // namespace
}  // namespace cadre
