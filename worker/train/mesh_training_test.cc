// Training over meshes of every shape: what a step does must not depend on who
// holds which part of the model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "worker/train/tiny_config.h"
#include "worker/train/trainer_fixture.h"

namespace cadre {
namespace {

using ::testing::SizeIs;

struct Layout {
  int ranks = 1, shards = 1, experts = 1;
};

class MeshTrainingTest : public TrainerTest {
 protected:
  TrainerOptions OptionsOf(const Layout& layout,
                           TuningOptions::Method method) const {
    TrainerOptions options = Options(layout.ranks, method);
    options.mesh.fsdp_shard_group_size = layout.shards;
    options.mesh.expert_parallel_size = layout.experts;
    return options;
  }

  // Every value of the exported result, by name.
  static Weights ResultOf(const std::string& dir,
                          TuningOptions::Method method) {
    Weights out;
    if (method == kFull) {
      auto read = ModelDir::Open(dir);
      EXPECT_OK(read);
      auto model = Model::Create(read->spec(), {});
      EXPECT_OK(model);
      EXPECT_OK((*model)->LoadWeights(*read));
      return WeightsOf(**model);
    }
    auto spec = ParseModelSpec(testing::TinyConfig());
    EXPECT_OK(spec);
    auto adapter = ReadPeftAdapter(dir, *spec);
    EXPECT_OK(adapter);
    for (size_t i = 0; i < adapter->plan.modules.size(); ++i) {
      out[adapter->plan.modules[i].a_name()] = adapter->weights[i].a;
      out[adapter->plan.modules[i].b_name()] = adapter->weights[i].b;
    }
    return out;
  }

  static const std::vector<Layout>& Layouts() {
    static const auto* const layouts =
        new std::vector<Layout>{{2, 2, 1}, {4, 1, 4}, {4, 2, 1}, {4, 4, 1},
                                {4, 1, 1}, {2, 1, 2}, {2, 2, 2}, {4, 2, 2}};
    return *layouts;
  }
};

TEST_F(MeshTrainingTest, EveryLayoutTrainsTheSame) {
  for (const auto method : {kLora, kFull}) {
    TrainerOptions options = OptionsOf({}, method);
    options.output.dir = root_ + "/one";
    const auto one = Run(options);
    ASSERT_OK(one[0]->status);
    const Weights expected = ResultOf(options.output.dir, method);
    for (const Layout& layout : Layouts()) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts, ", ",
                                method == kFull ? "full" : "lora"));
      options = OptionsOf(layout, method);
      options.output.dir = root_ + "/many";
      const auto many = Run(options);
      for (const auto& run : many) {
        ASSERT_OK(run->status);
        ExpectSameTraining(*one[0], *run);
      }
      EXPECT_LT(
          RelativeDistance(expected, ResultOf(options.output.dir, method)),
          1e-4);
    }
  }
}

TEST_F(MeshTrainingTest, ReplayedBlocksTrainTheSame) {
  for (const Layout& layout : {Layout{}, Layout{4, 2, 1}}) {
    TrainerOptions options = OptionsOf(layout, kFull);
    const auto plain = Run(options);
    options.model.replayed_blocks = kAllBlocks;
    const auto replayed = Run(options);
    ASSERT_OK(plain[0]->status);
    ASSERT_OK(replayed[0]->status);
    for (size_t i = 0; i < plain[0]->observer.steps.size(); ++i) {
      EXPECT_EQ(plain[0]->observer.steps[i].loss,
                replayed[0]->observer.steps[i].loss);
      EXPECT_EQ(plain[0]->observer.steps[i].grad_norm,
                replayed[0]->observer.steps[i].grad_norm);
    }
  }
}

// One layout saves, all others go on.
TEST_F(MeshTrainingTest, ACheckpointResumesOnEveryLayout) {
  for (const auto method : {kLora, kFull}) {
    TrainerOptions options = OptionsOf({}, method);
    options.training.max_steps = 6;
    const auto whole = Run(options);
    ASSERT_OK(whole[0]->status);
    const Layout& writer = Layouts()[1];
    options = OptionsOf(writer, method);
    options.training.max_steps = 6;
    const auto uninterrupted = Run(options);
    options.checkpoint.dir = absl::StrCat(root_, "/", method == kFull);
    options.checkpoint.seal_by_trainer = true;
    const auto half = Run(options, /*stop_at=*/3);
    for (const auto& run : half) ASSERT_OK(run->status);
    const std::string saved = half[0]->observer.sealed.at(3);
    std::vector<Layout> readers = Layouts();
    readers.push_back({});
    for (const Layout& layout : readers) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts));
      TrainerOptions resumed = OptionsOf(layout, method);
      resumed.training.max_steps = 6;
      resumed.checkpoint.resume_path = saved;
      const auto rest = Run(resumed);
      for (const auto& run : rest) {
        ASSERT_OK(run->status);
        ASSERT_THAT(run->observer.steps, SizeIs(3));
        for (int i = 0; i < 3; ++i) {
          const StepMetrics& a = whole[0]->observer.steps[3 + i];
          EXPECT_NEAR(a.loss, run->observer.steps[i].loss, 2e-5 * a.loss);
        }
      }
      const bool same = layout.ranks == writer.ranks &&
                        layout.shards == writer.shards &&
                        layout.experts == writer.experts;
      if (same) ExpectBitwiseEqual(*uninterrupted[0], 3, *rest[0]);
    }
  }
}

// Where ranks are changes what their bytes count as, and nothing else.
TEST_F(MeshTrainingTest, LinkDomainsTellHowFarRowsOfExpertsGo) {
  TrainerOptions options = OptionsOf({4, 1, 4}, kLora);
  // Of all ranks and steps, both directions.
  const auto sum = [](const std::vector<std::unique_ptr<RankRun>>& runs) {
    TierBytes bytes{};
    for (const auto& run : runs) {
      EXPECT_OK(run->status);
      for (const StepMetrics& step : run->observer.steps) {
        for (size_t tier = 0; tier < kNumLinkTiers; ++tier) {
          bytes[tier] += step.exchanges.dispatch_bytes[tier] +
                         step.exchanges.combine_bytes[tier];
        }
      }
    }
    return bytes;
  };
  constexpr auto kSelf = static_cast<size_t>(LinkTier::kSelf),
                 kLink = static_cast<size_t>(LinkTier::kLink),
                 kNetwork = static_cast<size_t>(LinkTier::kNetwork);
  const TierBytes unknown = sum(Run(options));
  EXPECT_GT(unknown[kSelf], 0);
  EXPECT_EQ(unknown[kLink], 0);
  EXPECT_GT(unknown[kNetwork], 0);
  options.link_domains = {"a", "a", "b", "b"};
  const TierBytes two_hosts = sum(Run(options));
  EXPECT_EQ(two_hosts[kSelf], unknown[kSelf]);
  EXPECT_GT(two_hosts[kLink], 0);
  EXPECT_GT(two_hosts[kNetwork], 0);
  EXPECT_EQ(two_hosts[kLink] + two_hosts[kNetwork], unknown[kNetwork]);
  options.link_domains = {"a", "a", "a", "a"};
  const TierBytes one_host = sum(Run(options));
  EXPECT_EQ(one_host[kLink], unknown[kNetwork]);
  EXPECT_EQ(one_host[kNetwork], 0);
}

TEST_F(MeshTrainingTest, PhasesOfAStepAddUpToIt) {
  for (const Layout& layout : {Layout{}, Layout{2, 2, 2}}) {
    for (const auto& run : Run(OptionsOf(layout, kLora))) {
      ASSERT_OK(run->status);
      double all = 0, parts = 0;
      for (const StepMetrics& step : run->observer.steps) {
        EXPECT_GT(step.forward_seconds, 0);
        EXPECT_GT(step.backward_seconds, 0);
        all += step.step_seconds;
        parts += step.data_seconds + step.forward_seconds +
                 step.backward_seconds + step.reduce_seconds +
                 step.optimizer_seconds + step.wait_seconds;
      }
      EXPECT_LE(parts, all * (1 + 1e-9));
      // Between them are a few assignments; the machine may be busy.
      EXPECT_GT(parts, 0.8 * all - 0.05);
    }
  }
}

TEST_F(MeshTrainingTest, ShardsTakeTheirShareOfMemory) {
  const auto memory = [&](const Layout& layout, TuningOptions::Method method) {
    const auto runs = Run(OptionsOf(layout, method));
    EXPECT_OK(runs[0]->status);
    // Nothing grows behind the first step.
    EXPECT_EQ(runs[0]->observer.steps.front().memory.total(),
              runs[0]->observer.steps.back().memory.total());
    return runs[0]->observer.steps.back().memory;
  };
  const MemoryUse one = memory({}, kFull), four = memory({4, 4, 1}, kFull);
  EXPECT_LT(four.optimizer, one.optimizer * 0.3);
  EXPECT_LT(four.weights, one.weights);
  EXPECT_EQ(one.gather, 0);
  EXPECT_GT(four.gather, 0);
  const MemoryUse lora = memory({4, 2, 1}, kLora);
  EXPECT_LT(lora.gradients, lora.weights);
  EXPECT_GT(lora.optimizer, 0);
}

// All arenas are made in the first step, in one piece each; what they held is
// what the plan says for the rows that came: a pass of 24 tokens, where 64-byte
// alignment alone is 2 %.
TEST_F(MeshTrainingTest, NoArenaGrowsBehindTheFirstStep) {
  std::vector<Layout> layouts = Layouts();
  layouts.push_back({});
  for (const auto method : {kLora, kFull}) {
    for (const Layout& layout : layouts) {
      for (const bool replays : {false, true}) {
        SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                  " shards, EP ", layout.experts,
                                  method == kFull ? ", full" : ", lora",
                                  replays ? ", replay" : ""));
        TrainerOptions options = OptionsOf(layout, method);
        options.model.replayed_blocks = replays ? kAllBlocks : 0;
        for (const auto& run : Run(options)) {
          ASSERT_OK(run->status);
          const MemoryUse& first = run->observer.steps.front().memory;
          const MemoryUse& last = run->observer.steps.back().memory;
          ASSERT_GT(run->observer.steps.size(), 1);
          EXPECT_EQ(first.allocations, 3);
          EXPECT_EQ(last.allocations, first.allocations);
          EXPECT_NEAR(static_cast<double>(last.activations),
                      static_cast<double>(last.expected_activations),
                      0.05 * static_cast<double>(last.activations));
          // Parts are smaller than what they are of, a step's most than that
          // of all steps.
          EXPECT_GT(last.step_workspace, 0);
          EXPECT_LT(last.step_workspace, last.step_activations);
          EXPECT_LE(last.step_workspace, last.workspace);
          EXPECT_LE(last.step_activations, last.activations);
          EXPECT_LT(last.workspace, last.activations);
          EXPECT_EQ(last.adapter > 0, method == kLora);
          EXPECT_LT(last.adapter, last.weights);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadre
