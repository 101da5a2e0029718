// Accumulation over micro-batches of unequal size, spread over ranks as
// unevenly: a step must not depend on who computes which part of the global
// batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "model/lora_targets.h"
#include "plan/mesh.h"
#include "worker/comm/local_communicator.h"
#include "worker/model/model.h"
#include "worker/model/tiny_models.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/model_layout.h"
#include "worker/shard/owned_slice.h"
#include "worker/train/train_step.h"

namespace cadre {
namespace {

constexpr double kTolerance = 1e-5;
constexpr double kClip = 0.05;
constexpr int kSteps = 3;

using Values = std::map<std::string, std::vector<float>>;

// A step's micro-batches by rank.
using Shares = std::vector<std::vector<Batch>>;

struct Outcome {
  std::vector<double> losses, norms;
  Values weights;  // after the last step, whole tensors
};

struct Layout {
  MeshSpec mesh;
  std::vector<int> batches;  // by rank
};

class AccumulationTest
    : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  ModelSpec spec() const {
    return testing::TinyModelNamed(std::get<0>(GetParam()));
  }
  ModelOptions Options() const {
    ModelOptions options;
    // A mean over each micro-batch would depend on what a micro-batch is.
    options.moe.aux_loss_coef = 0.0;
    options.replayed_blocks = kAllBlocks;
    if (std::get<1>(GetParam())) {
      auto lora = PlanLora(spec(), testing::AdaptEverything());
      EXPECT_OK(lora);
      options.lora = *lora;
    }
    return options;
  }

  // Eight micro-batches: of many tokens, of one, of none at all, of padding
  // alone, and one whose tokens no loss counts.
  std::vector<Batch> MicroBatches(int step) const {
    const std::vector<std::vector<int>> lengths = {{12, 5}, {3}, {7, 2},    {1},
                                                   {},      {9}, {2, 2, 2}, {}};
    std::vector<Batch> batches;
    for (size_t i = 0; i < lengths.size(); ++i) {
      batches.push_back(testing::RandomBatch(spec(), lengths[i],
                                             /*padding=*/i % 3,
                                             /*seed=*/100 * step + i));
    }
    for (int32_t& target : batches[5].targets) target = Batch::kIgnore;
    batches[4] = {.cu_seqlens = {0}};
    return batches;
  }

  absl::Status RunRank(const Mesh& mesh, std::unique_ptr<Communicator> world,
                       const std::vector<Shares>& steps, Outcome* outcome) {
    const int rank = world->rank();
    CADRE_ASSIGN_OR_RETURN(const auto communicators,
                           MeshCommunicators::Create(mesh, std::move(world)));
    ModelOptions options = Options();
    CADRE_RETURN_IF_ERROR(PlaceModel(spec(), mesh, rank, &options));
    CADRE_ASSIGN_OR_RETURN(const auto model, Model::Create(spec(), options));
    CADRE_RETURN_IF_ERROR(model->InitWeights(11));
    CADRE_RETURN_IF_ERROR(model->InitAdapter(12));
    CADRE_ASSIGN_OR_RETURN(
        const auto runner,
        TrainStepRunner::Create(
            // Far above rounding, which a division by sqrt(v) would blow up.
            {.optimizer = {.epsilon = 1e-3, .max_grad_norm = kClip}},
            model.get(), communicators.get(), Clock::Real()));
    for (int step = 0; step < kSteps; ++step) {
      TrainStep data;
      data.micro_batches = steps[step][rank];
      CADRE_ASSIGN_OR_RETURN(const StepMetrics metrics,
                             runner->Run(data, step, 1e-2));
      if (rank > 0) continue;
      outcome->losses.push_back(metrics.loss);
      outcome->norms.push_back(metrics.grad_norm);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Optimizer::Slot& slot : runner->optimizer().slots()) {
      if (!slot.slice.counted) continue;
      const Parameter& parameter = *slot.slice.parameter;
      int64_t size = 1;
      for (const int64_t dim : parameter.global_shape) size *= dim;
      std::vector<float>& whole = outcome->weights[parameter.name];
      whole.resize(size, std::nanf(""));  // what nobody holds stays seen
      for (const Stretch& part : HomeStretches(slot.slice)) {
        std::copy_n(slot.weight().data<float>() + part.begin, part.size,
                    whole.begin() + part.global_begin);
      }
    }
    return absl::OkStatus();
  }

  Outcome Run(const Layout& layout) {
    const auto mesh = Mesh::Create(layout.mesh);
    EXPECT_OK(mesh);
    std::vector<Shares> steps(kSteps);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<Batch> all = MicroBatches(step);
      auto next = all.begin();
      for (const int count : layout.batches) {
        steps[step].emplace_back(next, next + count);
        next += count;
      }
      EXPECT_TRUE(next == all.end());
    }
    auto worlds = CreateLocalCommunicators(mesh->world_size(),
                                           {.timeout = absl::Seconds(30)});
    Outcome outcome;
    std::vector<std::thread> threads;
    for (auto& world : worlds) {
      threads.emplace_back([&, world = std::move(world)]() mutable {
        EXPECT_OK(RunRank(*mesh, std::move(world), steps, &outcome));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcome;
  }

  std::mutex mutex_;
};

double Distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) return 1;
  double worst = 0;
  for (const auto& [name, expected] : b) {
    const auto found = a.find(name);
    if (found == a.end() || found->second.size() != expected.size()) return 1;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(found->second[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    worst = std::max(worst, std::sqrt(difference / std::max(norm, 1e-12)));
    if (std::isnan(difference)) return 1;
  }
  return worst;
}

TEST_P(AccumulationTest, UnequalSharesOfABatchMakeTheSameStep) {
  const Outcome one = Run({.batches = {8}});
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_GT(one.norms[0], kClip) << "clipping must act";
  EXPECT_NE(one.losses[0], one.losses[2]);
  for (const Layout& layout : std::vector<Layout>{
           {{.world_size = 2}, {5, 3}},
           {{.world_size = 2, .fsdp_shard_group_size = 2}, {1, 7}},
           {{.world_size = 2, .expert_parallel_size = 2}, {6, 2}},
           {{.world_size = 2,
             .fsdp_shard_group_size = 2,
             .expert_parallel_size = 2},
            {8, 0}},
           {{.world_size = 4,
             .fsdp_shard_group_size = 2,
             .expert_parallel_size = 2},
            {4, 1, 0, 3}},
           {{.world_size = 4, .expert_parallel_size = 4}, {1, 3, 2, 2}},
           {{.world_size = 4,
             .fsdp_shard_group_size = 4,
             .expert_parallel_size = 4},
            {2, 2, 2, 2}}}) {
    SCOPED_TRACE(absl::StrCat(layout.mesh.world_size, " ranks, ",
                              layout.mesh.fsdp_shard_group_size, " shards, EP ",
                              layout.mesh.expert_parallel_size));
    const Outcome many = Run(layout);
    ASSERT_EQ(many.losses.size(), one.losses.size());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(many.losses[step], one.losses[step],
                  kTolerance * one.losses[step]);
      EXPECT_NEAR(many.norms[step], one.norms[step],
                  kTolerance * one.norms[step]);
    }
    EXPECT_LT(Distance(many.weights, one.weights), kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, AccumulationTest,
    ::testing::Combine(::testing::Values("KimiLinear", "KimiK3", "Qwen3Next"),
                       ::testing::Bool()),
    [](const auto& info) {
      return std::get<0>(info.param) +
             (std::get<1>(info.param) ? "Lora" : "Full");
    });

}  // namespace
}  // namespace cadre
