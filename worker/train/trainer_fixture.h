#ifndef CADRE_WORKER_TRAIN_TRAINER_FIXTURE_H_
#define CADRE_WORKER_TRAIN_TRAINER_FIXTURE_H_

// For tests: a real, tiny model trained by ranks that are threads of this
// process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"
#include "model/peft_adapter.h"
#include "worker/comm/local_communicator.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/shard/model_layout.h"
#include "worker/train/tiny_config.h"
#include "worker/train/trainer.h"

namespace cadre {

using Weights = std::map<std::string, std::vector<float>>;

inline std::vector<EncodedSample> Samples(int count) {
  std::vector<EncodedSample> samples;
  uint32_t random = 7;
  for (int s = 0; s < count; ++s) {
    EncodedSample sample;
    const int length = 5 + s % 7;
    for (int t = 0; t < length; ++t) {
      random = random * 1664525u + 1013904223u;
      sample.ids.push_back(1 + static_cast<int32_t>(random >> 8) % 47);
      sample.trained.push_back(t > s % 3);  // targets differ between rows
    }
    sample.full_length = length;
    samples.push_back(std::move(sample));
  }
  return samples;
}

class Recorder : public TrainObserver {
 public:
  void OnStep(const StepMetrics& m) override { steps.push_back(m); }
  void OnEval(const EvalMetrics& m) override { evals.push_back(m); }
  void OnFilesSaved(const FilesSaved& s) override { saved.push_back(s); }
  void OnSealed(int64_t step, const std::string& dir,
                const std::string&) override {
    sealed[step] = dir;
  }
  void OnEvent(absl::string_view kind, absl::string_view) override {
    events.push_back(std::string(kind));
  }
  bool StopRequested() override {
    return stop_at >= 0 && static_cast<int64_t>(steps.size()) >= stop_at;
  }

  void OnExpertsPlaced(const std::shared_ptr<const ExpertPlacement>& placement,
                       bool from_checkpoint, const ExpertSize& size) override {
    placed = placement;
    placed_by_checkpoint = from_checkpoint;
    expert_size = size;
  }
  std::shared_ptr<const ExpertPlacement> WantedPlacement() override {
    const auto after = wanted.upper_bound(static_cast<int64_t>(steps.size()));
    return after == wanted.begin() ? nullptr : std::prev(after)->second;
  }
  void OnExpertsMoved(const ExpertsMoved& m) override { moved.push_back(m); }

  int64_t stop_at = -1;
  // By the number of steps after which this rank has heard of it.
  std::map<int64_t, std::shared_ptr<const ExpertPlacement>> wanted;
  std::shared_ptr<const ExpertPlacement> placed;
  bool placed_by_checkpoint = false;
  ExpertSize expert_size;
  std::vector<ExpertsMoved> moved;
  std::vector<StepMetrics> steps;
  std::vector<EvalMetrics> evals;
  std::vector<FilesSaved> saved;
  std::map<int64_t, std::string> sealed;
  std::vector<std::string> events;
};

// What one rank did.
struct RankRun {
  Recorder observer;
  absl::Status status;
  TrainOutcome outcome = TrainOutcome::kFinished;
  Weights weights;
  ExportedArtifact artifact;
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() : root_(testing::NewTestFolder()) {}

  TrainerOptions Options(int ranks, TuningOptions::Method method) const {
    TrainerOptions options;
    options.job = "jobs/tiny";
    options.mesh.world_size = ranks;
    options.tuning.method = method;
    options.tuning.lora_rank = 4;
    options.tuning.lora_alpha = 8;
    options.tuning.lora_target_modules = {"q_proj", "o_proj", "experts",
                                          "expert_gate"};
    options.data.max_seq_len = 24;
    options.training.max_steps = 4;
    options.training.global_batch_size = 8;
    options.training.micro_batch_size = 1;
    options.training.learning_rate = 1e-2;
    options.training.seed = 3;
    options.model.random_init = true;
    return options;
  }

  static std::unique_ptr<PackedDataset> Data(const TrainerOptions& options,
                                             int count) {
    return Data(options, Samples(count));
  }
  static std::unique_ptr<PackedDataset> Data(
      const TrainerOptions& options, std::vector<EncodedSample> samples) {
    PackedDatasetOptions data;
    data.encode.max_seq_len = options.data.max_seq_len;
    data.seed = options.training.seed;
    data.global_batch_size = options.training.global_batch_size;
    data.micro_batch_size = options.training.micro_batch_size;
    data.rank = options.rank;
    data.num_ranks = options.mesh.world_size;
    auto dataset = PackedDataset::FromSamples(std::move(samples), data);
    EXPECT_OK(dataset);
    return dataset.ok() ? *std::move(dataset) : nullptr;
  }

  static TrainerInputs Inputs(const TrainerOptions& options) {
    TrainerInputs inputs;
    inputs.config_json = testing::TinyConfig();
    inputs.base_fingerprint = "tiny";
    auto spec = ParseModelSpec(testing::TinyConfig());
    EXPECT_OK(spec);
    ModelOptions model;
    if (options.tuning.method == TuningOptions::Method::kLora) {
      auto plan =
          PlanLora(*spec, {.rank = options.tuning.lora_rank,
                           .alpha = options.tuning.lora_alpha,
                           .targets = options.tuning.lora_target_modules});
      EXPECT_OK(plan);
      model.lora = *plan;
      inputs.adapter = std::make_unique<PeftAdapter>();
      inputs.adapter->plan = *plan;
    }
    auto mesh = Mesh::Create(options.mesh);
    EXPECT_OK(mesh);
    model.replayed_blocks = options.model.replayed_blocks;
    model.pass_tokens =
        options.data.max_seq_len * options.training.micro_batch_size;
    EXPECT_OK(
        PlaceModel(*spec, *mesh, options.rank, &model,
                   {.spare_slots_per_rank = options.moe.spare_slots_per_rank,
                    .placement = options.moe.placement.get()}));
    auto made = Model::Create(*spec, model);
    EXPECT_OK(made);
    inputs.model = *std::move(made);
    EXPECT_OK(inputs.model->InitWeights(11));
    EXPECT_OK(inputs.model->InitAdapter(12));
    inputs.train = Data(options, 40);
    inputs.eval = Data(options, 9);
    return inputs;
  }

  // What is wholly here.
  static Weights WeightsOf(Model& model) {
    Weights weights;
    for (const Parameter* p : model.parameters().all()) {
      if (p->unit >= 0 || !p->rows.empty()) continue;
      const auto values = p->value.span<float>();
      weights[p->name].assign(values.begin(), values.end());
    }
    return weights;
  }

  // Trains (and exports where a folder is named) on all ranks.
  static std::vector<std::unique_ptr<RankRun>> Run(
      const TrainerOptions& options, int64_t stop_at = -1,
      const std::function<void(Model&)>& change = nullptr,
      const std::function<void(int rank, Recorder&)>& prepare = nullptr) {
    const int ranks = options.mesh.world_size;
    auto world =
        CreateLocalCommunicators(ranks, {.timeout = absl::Seconds(50)});
    std::vector<std::unique_ptr<RankRun>> runs;
    for (int r = 0; r < ranks; ++r) runs.push_back(std::make_unique<RankRun>());
    // Only the last rank asks for the stop.
    runs.back()->observer.stop_at = stop_at;
    for (int r = 0; prepare && r < ranks; ++r) prepare(r, runs[r]->observer);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        RankRun& run = *runs[r];
        TrainerOptions mine = options;
        mine.rank = r;
        TrainerInputs inputs = Inputs(mine);
        Model* model = inputs.model.get();
        if (change) change(*model);
        auto trainer = Trainer::Create(mine, std::move(inputs),
                                       std::move(world[r]), &run.observer);
        run.status = trainer.status();
        if (!trainer.ok()) return;
        const auto outcome = (*trainer)->Train();
        run.status = outcome.status();
        run.weights = WeightsOf(*model);
        if (!outcome.ok()) return;
        run.outcome = *outcome;
        if (*outcome == TrainOutcome::kStopped) return;
        const auto artifact = (*trainer)->Export();
        run.status = artifact.status();
        if (artifact.ok()) run.artifact = *artifact;
        EXPECT_GT((*trainer)->collective_seq(), 0);
        EXPECT_EQ((*trainer)->step(), (*trainer)->total_steps());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return runs;
  }

  std::string root_;
};

inline double RelativeDistance(const Weights& a, const Weights& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : a) {
    // What one of them holds only in part is compared by what it does.
    if (!b.contains(name)) continue;
    const std::vector<float>& others = b.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = double{values[i]} - others[i];
      difference += d * d;
      norm += double{values[i]} * values[i];
    }
  }
  return norm > 0 ? std::sqrt(difference / norm) : 0.0;
}

// Equal up to the rounding of float32 sums in another order.
inline void ExpectSameTraining(const RankRun& a, const RankRun& b) {
  ASSERT_EQ(a.observer.steps.size(), b.observer.steps.size());
  for (size_t i = 0; i < a.observer.steps.size(); ++i) {
    const StepMetrics &x = a.observer.steps[i], &y = b.observer.steps[i];
    EXPECT_NEAR(x.loss, y.loss, 2e-5 * x.loss) << "step " << i;
    EXPECT_NEAR(x.grad_norm, y.grad_norm, 1e-3 * x.grad_norm) << "step " << i;
    EXPECT_EQ(x.targets, y.targets);
    EXPECT_EQ(x.tokens, y.tokens);
  }
  // The first step sees equal weights, so it is the sharp test.
  EXPECT_NEAR(a.observer.steps[0].grad_norm, b.observer.steps[0].grad_norm,
              2e-6 * a.observer.steps[0].grad_norm);
  EXPECT_EQ(a.observer.steps[0].expert_tokens,
            b.observer.steps[0].expert_tokens);
  EXPECT_LT(RelativeDistance(a.weights, b.weights), 1e-4);
}

inline void ExpectBitwiseEqual(const RankRun& a, size_t first_step,
                               const RankRun& b) {
  for (size_t i = 0; i < b.observer.steps.size(); ++i) {
    const StepMetrics& x = a.observer.steps.at(first_step + i);
    const StepMetrics& y = b.observer.steps[i];
    EXPECT_EQ(x.step, y.step);
    EXPECT_EQ(x.loss, y.loss);
    EXPECT_EQ(x.grad_norm, y.grad_norm);
    EXPECT_EQ(x.learning_rate, y.learning_rate);
    EXPECT_EQ(x.trained_tokens, y.trained_tokens);
  }
  EXPECT_EQ(a.weights, b.weights);
}

inline constexpr auto kLora = TuningOptions::Method::kLora;
inline constexpr auto kFull = TuningOptions::Method::kFull;

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAINER_FIXTURE_H_
