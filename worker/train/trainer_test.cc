// A real, tiny model trained by ranks that are threads of this process.

#include "worker/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/model_spec.h"
#include "model/peft_adapter.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/retention.h"
#include "worker/comm/local_communicator.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/train/tiny_config.h"
#include "worker/train/train_step.h"
#include "worker/train/trainer_fixture.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::cadre::testing::IsOk;
using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(TrainerTest, RanksShareTheWorkOfOne) {
  for (const auto method : {kLora, kFull}) {
    const auto one = Run(Options(1, method));
    ASSERT_OK(one[0]->status);
    EXPECT_LT(one[0]->observer.steps.back().loss,
              one[0]->observer.steps.front().loss);
    for (int ranks : {2, 4}) {
      const auto many = Run(Options(ranks, method));
      for (const auto& run : many) ASSERT_OK(run->status);
      ExpectSameTraining(*one[0], *many[0]);
      // All ranks hold the same bits.
      for (const auto& run : many) EXPECT_EQ(run->weights, many[0]->weights);
    }
  }
}

TEST_F(TrainerTest, MicroBatchesDoNotChangeTheStep) {
  TrainerOptions options = Options(1, kFull);
  const auto eight_by_one = Run(options);
  ASSERT_OK(eight_by_one[0]->status);
  for (int64_t micro : {2, 4, 8}) {
    options.training.micro_batch_size = micro;
    const auto other = Run(options);
    ASSERT_OK(other[0]->status);
    ExpectSameTraining(*eight_by_one[0], *other[0]);
  }
}

TEST_F(TrainerTest, OnlyTheAdapterMovesUnderLora) {
  const auto run = Run(Options(1, kLora));
  TrainerOptions options = Options(1, kLora);
  TrainerInputs fresh = Inputs(options);
  const Weights before = WeightsOf(*fresh.model);
  for (const Parameter* p : fresh.model->parameters().all()) {
    EXPECT_EQ(before.at(p->name) == run[0]->weights.at(p->name), !p->trainable)
        << p->name;
  }
}

TEST_F(TrainerTest, ResumingContinuesBitForBit) {
  for (const auto method : {kLora, kFull}) {
    for (int ranks : {1, 2}) {
      TrainerOptions options = Options(ranks, method);
      options.training.max_steps = 6;
      options.training.micro_batch_size = 2;
      const auto whole = Run(options);
      ASSERT_OK(whole[0]->status);
      options.checkpoint.dir =
          absl::StrCat(root_, "/", ranks, "-", static_cast<int>(method));
      options.checkpoint.seal_by_trainer = true;
      const auto half = Run(options, /*stop_at=*/3);
      for (const auto& run : half) {
        ASSERT_OK(run->status);
        EXPECT_EQ(run->outcome, TrainOutcome::kStopped);
        EXPECT_THAT(run->observer.steps, SizeIs(3));
      }
      options.attempt_epoch = 2;
      options.checkpoint.resume_path = half[0]->observer.sealed.at(3);
      const auto rest = Run(options);
      for (const auto& run : rest) {
        ASSERT_OK(run->status);
        EXPECT_THAT(run->observer.steps, SizeIs(3));
        ExpectBitwiseEqual(*whole[0], 3, *run);
      }
      EXPECT_EQ(fs::path(rest[0]->observer.sealed.at(6)).filename(),
                "step-00000006.attempt-2");
    }
  }
}

TEST_F(TrainerTest, AnotherNumberOfRanksCanResume) {
  TrainerOptions options = Options(2, kLora);
  options.training.max_steps = 6;
  const auto whole = Run(options);
  options.checkpoint.dir = root_;
  options.checkpoint.seal_by_trainer = true;
  const auto half = Run(options, 3);
  ASSERT_OK(half[0]->status);
  options.checkpoint.resume_path = half[0]->observer.sealed.at(3);
  options.mesh.world_size = 1;
  const auto rest = Run(options);
  ASSERT_OK(rest[0]->status);
  EXPECT_LT(RelativeDistance(whole[0]->weights, rest[0]->weights), 1e-4);
}

TEST_F(TrainerTest, CheckpointsThatDoNotFitAreRefused) {
  TrainerOptions options = Options(1, kLora);
  options.checkpoint.dir = root_;
  options.checkpoint.seal_by_trainer = true;
  const auto half = Run(options, 2);
  ASSERT_OK(half[0]->status);
  const std::string dir = half[0]->observer.sealed.at(2);
  options.checkpoint.resume_path = dir;

  TrainerOptions other = options;
  other.training.global_batch_size = 16;
  EXPECT_THAT(
      Run(other)[0]->status,
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("global_batch_size 8"), HasSubstr("16"))));
  other.checkpoint.resume_optimizer = false;
  EXPECT_OK(Run(other)[0]->status);
  other = options;
  other.tuning.method = kFull;
  EXPECT_THAT(Run(other)[0]->status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tuning.method")));
  other = options;
  other.tuning.lora_target_modules = {"q_proj"};
  EXPECT_THAT(Run(other)[0]->status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("lora_target_modules")));
  other = options;
  other.tuning.lora_rank = 2;
  EXPECT_THAT(Run(other)[0]->status,
              StatusIs(absl::StatusCode::kFailedPrecondition));
  other = options;
  other.training.learning_rate *= 2;
  EXPECT_THAT(Run(other)[0]->status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("config_hash")));
  // Another job may.
  other.job = "jobs/another";
  EXPECT_OK(Run(other)[0]->status);
  other = options;
  other.checkpoint.resume_manifest_sha256 = std::string(64, 'a');
  EXPECT_THAT(Run(other)[0]->status, StatusIs(absl::StatusCode::kDataLoss));
  {
    std::ofstream file(dir + "/optimizer-00000.safetensors",
                       std::ios::binary | std::ios::app);
    file << "x";
  }
  EXPECT_THAT(Run(options)[0]->status,
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("optimizer-00000.safetensors")));
}

TEST_F(TrainerTest, SavesOnScheduleAndKeepsTheNewest) {
  TrainerOptions options = Options(2, kLora);
  options.checkpoint.dir = root_;
  options.checkpoint.every_steps = 1;
  options.checkpoint.keep_last = 2;
  options.checkpoint.seal_by_trainer = true;
  const auto runs = Run(options);
  ASSERT_OK(runs[0]->status);
  EXPECT_THAT(runs[0]->observer.saved, SizeIs(4));
  EXPECT_THAT(runs[1]->observer.saved, SizeIs(4));
  ASSERT_OK_AND_ASSIGN(const auto stored, ListCheckpoints(root_));
  ASSERT_THAT(stored, SizeIs(2));
  EXPECT_EQ(stored[0].step, 3);
  EXPECT_EQ(stored[1].step, 4);
  ASSERT_OK_AND_ASSIGN(const CheckpointManifest manifest,
                       VerifyCheckpoint(stored[1].path));
  EXPECT_EQ(manifest.mesh.world_size, 2);
  // Both ranks update experts: adapter, optimizer and state of each.
  EXPECT_THAT(manifest.files, SizeIs(6));
}

TEST_F(TrainerTest, WithoutSealingTheFoldersAreNoCheckpoints) {
  TrainerOptions options = Options(2, kLora);
  options.checkpoint.dir = root_;
  const auto runs = Run(options);
  ASSERT_OK(runs[0]->status);
  ASSERT_THAT(runs[0]->observer.saved, SizeIs(1));
  const FilesSaved& saved = runs[0]->observer.saved[0];
  EXPECT_THAT(VerifyCheckpoint(saved.dir),
              StatusIs(absl::StatusCode::kNotFound));
  // Whoever leads the attempt puts the lists together.
  CheckpointManifest manifest = saved.manifest;
  for (const auto& run : runs) {
    for (const CheckpointFile& file : run->observer.saved[0].files) {
      manifest.files.push_back(file);
    }
  }
  ASSERT_OK(SealCheckpoint(saved.dir, manifest));
  EXPECT_OK(VerifyCheckpoint(saved.dir));
}

TEST_F(TrainerTest, NonFiniteStepsUpdateNothingAndEndTheJobWhenTheyRepeat) {
  TrainerOptions options = Options(2, kLora);
  options.training.max_nonfinite_steps = 1;
  const auto poison = [](Model& model) {
    for (Parameter* p : model.parameters().all()) {
      if (!p->trainable && p->value.num_elements() > 0) {
        p->value.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  };
  const auto runs = Run(options, -1, poison);
  TrainerInputs fresh = Inputs(options);
  for (const auto& run : runs) {
    EXPECT_THAT(run->status, StatusIs(absl::StatusCode::kOutOfRange,
                                      HasSubstr("max_nonfinite_steps is 1")));
    EXPECT_THAT(run->observer.steps, SizeIs(2));
    EXPECT_TRUE(run->observer.steps[0].skipped);
    EXPECT_EQ(run->observer.steps[1].nonfinite_total, 2);
    EXPECT_THAT(run->observer.events,
                ElementsAre("NONFINITE_STEP", "NONFINITE_STEP"));
    for (const Parameter* p : fresh.model->parameters().Trainable()) {
      const auto values = p->value.span<float>();
      EXPECT_EQ(run->weights.at(p->name),
                std::vector<float>(values.begin(), values.end()));
    }
  }
}

TEST_F(TrainerTest, EvaluatesTheSameLossOnAnyNumberOfRanks) {
  TrainerOptions options = Options(1, kLora);
  options.training.eval_every = 2;
  const auto one = Run(options);
  ASSERT_OK(one[0]->status);
  ASSERT_THAT(one[0]->observer.evals, SizeIs(2));
  options.mesh.world_size = 4;
  const auto four = Run(options);
  ASSERT_THAT(four[3]->observer.evals, SizeIs(2));
  for (int i : {0, 1}) {
    const EvalMetrics &a = one[0]->observer.evals[i],
                      &b = four[3]->observer.evals[i];
    EXPECT_EQ(a.targets, b.targets);
    EXPECT_GT(a.targets, 0);
    EXPECT_NEAR(a.loss, b.loss, 1e-5 * a.loss);
  }
}

TEST_F(TrainerTest, OptionsThatCannotWorkNameTheField) {
  const auto status = [](const TrainerOptions& options) {
    auto world = CreateLocalCommunicators(options.mesh.world_size);
    Recorder observer;
    TrainerOptions safe = options;
    safe.training.global_batch_size = 8;
    safe.training.micro_batch_size = 1;
    safe.mesh = {.world_size = options.mesh.world_size};
    return Trainer::Create(options, Inputs(safe), std::move(world[0]),
                           &observer)
        .status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  TrainerOptions options = Options(2, kLora);
  options.mesh.fsdp_shard_group_size = 3;
  EXPECT_THAT(
      status(options),
      StatusIs(kInvalid, HasSubstr("parallelism.fsdp_shard_group_size is 3")));
  options = Options(2, kLora);
  options.mesh.expert_parallel_size = 4;
  EXPECT_THAT(
      status(options),
      StatusIs(kInvalid, HasSubstr("parallelism.expert_parallel_size is 4")));
  options = Options(2, kLora);
  options.training.micro_batch_size = 3;
  EXPECT_THAT(status(options),
              StatusIs(kInvalid, AllOf(HasSubstr("global_batch_size is 8"),
                                       HasSubstr("nearest: 6 or 12"))));
  options = Options(1, kLora);
  options.training.learning_rate = 2;
  EXPECT_THAT(status(options),
              StatusIs(kInvalid, HasSubstr("training.learning_rate")));
}

TEST_F(TrainerTest, RanksWithOtherOptionsAreRefused) {
  auto world = CreateLocalCommunicators(2);
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TrainerOptions options = Options(2, kLora);
      options.rank = r;
      options.training.learning_rate = r == 0 ? 1e-3 : 2e-3;
      Recorder observer;
      statuses[r] = Trainer::Create(options, Inputs(options),
                                    std::move(world[r]), &observer)
                        .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("disagree"))));
}

TEST_F(TrainerTest, AbortInterruptsARankThatWaitsForItsPeer) {
  auto world = CreateLocalCommunicators(2, {.timeout = absl::Minutes(10)});
  std::vector<std::unique_ptr<Trainer>> trainers(2);
  Recorder observers[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TrainerOptions options = Options(2, kLora);
      options.rank = r;
      auto made = Trainer::Create(options, Inputs(options), std::move(world[r]),
                                  &observers[r]);
      ASSERT_OK(made);
      trainers[r] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int64_t before = trainers[0]->collective_seq();
  std::thread aborter([&] {
    while (trainers[0]->collective_seq() == before) std::this_thread::yield();
    trainers[0]->Abort();
  });
  EXPECT_THAT(trainers[0]->Train(), StatusIs(absl::StatusCode::kAborted));
  aborter.join();
}

TEST_F(TrainerTest, ARankWithoutRowsTakesPart) {
  auto world = CreateLocalCommunicators(2);
  StepMetrics metrics[2];
  Weights weights[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TrainerOptions options = Options(1, kFull);
      TrainerInputs inputs = Inputs(options);
      TrainStep data = inputs.train->Next();
      if (r == 1) data.micro_batches.clear();
      ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create({.world_size = 2}));
      ASSERT_OK_AND_ASSIGN(
          const auto communicators,
          MeshCommunicators::Create(mesh, std::move(world[r])));
      auto runner =
          TrainStepRunner::Create({.micro_batches = 8}, inputs.model.get(),
                                  communicators.get(), Clock::Real());
      ASSERT_OK(runner);
      auto done = (*runner)->Run(data, 0, 1e-2);
      ASSERT_OK(done);
      metrics[r] = *done;
      weights[r] = WeightsOf(*inputs.model);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(metrics[1].targets, 0);
  EXPECT_GT(metrics[1].loss, 0);
  EXPECT_EQ(metrics[0].grad_norm, metrics[1].grad_norm);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(TrainerTest, ExportsTheAdapterInEveryLayout) {
  TrainerOptions options = Options(2, kLora);
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec,
                       ParseModelSpec(testing::TinyConfig()));
  for (const char* format : {"auto", "peft_per_expert", "peft_fused"}) {
    options.output.adapter_format = format;
    options.output.dir = absl::StrCat(root_, "/", format, "/");
    const auto runs = Run(options);
    for (const auto& run : runs) ASSERT_OK(run->status);
    EXPECT_EQ(runs[0]->artifact.kind, "adapter");
    EXPECT_THAT(runs[0]->artifact.manifest_sha256, SizeIs(64));
    ASSERT_OK_AND_ASSIGN(const PeftAdapter read,
                         ReadPeftAdapter(runs[0]->artifact.dir, spec));
    EXPECT_EQ(read.layout, std::string(format) == "peft_fused"
                               ? ExpertLayout::kFused
                               : ExpertLayout::kPerExpert);
    const LoraModule& first = read.plan.modules[0];
    EXPECT_EQ(read.weights[0].b, runs[0]->weights.at(first.b_name()));
  }
}

TEST_F(TrainerTest, ReplacesItsOwnResultButNothingElse) {
  TrainerOptions options = Options(1, kLora);
  options.output.dir = root_ + "/out";
  ASSERT_OK(Run(options)[0]->status);
  ASSERT_OK(Run(options)[0]->status);
  std::vector<std::string> beside;
  for (const auto& entry : fs::directory_iterator(root_)) {
    beside.push_back(entry.path().filename());
  }
  EXPECT_THAT(beside, ElementsAre("out"));
  options.job = "jobs/other";
  EXPECT_THAT(Run(options)[0]->status,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("out")));
  options.output.adapter_format = "zip";
  options.output.dir = root_ + "/zip";
  EXPECT_THAT(Run(options)[0]->status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("zip")));
}

TEST_F(TrainerTest, ExportsAFullModelThatReadsBack) {
  TrainerOptions options = Options(1, kFull);
  options.output.dir = root_ + "/model";
  const auto runs = Run(options);
  ASSERT_OK(runs[0]->status);
  EXPECT_EQ(runs[0]->artifact.kind, "checkpoint");
  ASSERT_OK_AND_ASSIGN(const ModelDir dir, ModelDir::Open(options.output.dir));
  ASSERT_OK_AND_ASSIGN(auto model, Model::Create(dir.spec(), {}));
  ASSERT_OK(model->LoadWeights(dir));
  EXPECT_EQ(WeightsOf(*model), runs[0]->weights);
}

}  // namespace
}  // namespace cadre
