// The order of events in a session, with an engine that does what the test
// says. Training for real is tested in worker/train and tests/cluster.
#include "worker/session.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "plan/expert_placement.h"
#include "plan/placement_proto.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/session_fixture.h"

namespace cadre {
namespace session_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using PlacementPtr = std::shared_ptr<const ExpertPlacement>;

TEST_F(SessionTest, RunsThroughAndReportsTheResult) {
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  const EndedState ended = Run();
  EXPECT_EQ(ended.result(), EndedState::RESULT_DONE);
  EXPECT_EQ(ended.step(), 5);
  EXPECT_EQ(script_.seen.training.max_steps, 5);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].attempt_epoch(), 2);
  EXPECT_EQ(sent_[0].artifact().kind(), "adapter");
  EXPECT_EQ(sent_[0].artifact().storage_path(), "/out/adapter");
}

TEST_F(SessionTest, ALinkOutOfTheAllowedRootsEndsItBeforeAnythingIsRead) {
  std::filesystem::create_directories(dir_ / "root/model");
  std::ofstream(dir_ / "secret") << "x";
  std::filesystem::create_symlink(dir_ / "secret",
                                  dir_ / "root/model/tokenizer.json");
  assignment_.mutable_spec()->mutable_model()->set_path(dir_ / "root/model");
  assignment_.add_allowed_roots(dir_ / "root");
  const EndedState ended = Run();
  EXPECT_EQ(ended.result(), EndedState::RESULT_ERROR);
  EXPECT_EQ(ended.cause(), v1::FAILURE_CAUSE_USER);
  EXPECT_THAT(ended.evidence(), HasSubstr("tokenizer.json' leads by"));
  EXPECT_THAT(ended.evidence(), HasSubstr("/secret'"));
}

// Two experts on two ranks with a spare slot each.
PlacementPtr Place(std::vector<int32_t> slots, int64_t epoch) {
  auto placement = MakePlacement(
      {.num_layers = 1, .num_experts = 2, .num_ranks = 2, .slots_per_rank = 2},
      {std::move(slots)}, epoch);
  EXPECT_OK(placement);
  return std::make_shared<ExpertPlacement>(*std::move(placement));
}

TEST_F(SessionTest, ExpertsMoveByOrderAndStaleOrdersAreRefused) {
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  const PlacementPtr first = Place({0, -1, 1, -1}, 3);
  const PlacementPtr second = Place({0, 1, 1, 0}, 4);
  SyncRequest prepared, moved;
  script_.train = [&](TrainObserver* observer) {
    // Nothing is taken before it is known where the experts lie.
    link_.RequestPlacement(ToProto(*second, 2));
    EXPECT_EQ(observer->WantedPlacement(), nullptr);
    observer->OnExpertsPlaced(first, /*from_checkpoint=*/true,
                              {.bytes = 10, .state_bytes = 20});
    v1::ExpertPlacement bad = ToProto(*Place({0, 1, 1, 0}, 2), 2);
    link_.RequestPlacement(bad);  // older than what is in force
    bad = ToProto(*second, 1);
    link_.RequestPlacement(bad);  // of another attempt
    EXPECT_EQ(observer->WantedPlacement(), nullptr);
    bad = ToProto(*Place({0, 1, 1, 0}, 5), 2);
    bad.set_slots_per_rank(3);
    link_.RequestPlacement(bad);  // its sizes do not agree
    EXPECT_EQ(observer->WantedPlacement(), nullptr);
    link_.RequestPlacement(ToProto(*second, 2));
    link_.RequestPlacement(ToProto(*second, 2));  // repeated
    EXPECT_EQ(*observer->WantedPlacement(), *second);
    StepMetrics metrics;
    metrics.step = 1;
    metrics.total_steps = 5;
    metrics.expert_tokens = {{6, 2}};
    metrics.rank_tokens = {{6, 2}};
    metrics.expert_seconds = 0.5;
    metrics.plan_epoch = 3;
    observer->OnStep(metrics);
    link_.FillState(&prepared);
    observer->OnExpertsMoved({.step = 1,
                              .placement = second,
                              .seconds = 0.25,
                              .max_rank_bytes = 30});
    EXPECT_EQ(observer->WantedPlacement(), nullptr);
    metrics.step = 2;
    metrics.rank_tokens = {{4, 4}};
    metrics.plan_epoch = 4;
    observer->OnStep(metrics);
    link_.FillState(&moved);
    return TrainOutcome::kFinished;
  };
  EXPECT_EQ(Run().result(), EndedState::RESULT_DONE);
  EXPECT_EQ(prepared.running().plan_epoch(), 3);
  EXPECT_EQ(prepared.running().prepared_plan_epoch(), 4);
  EXPECT_EQ(moved.running().plan_epoch(), 4);
  EXPECT_EQ(moved.running().prepared_plan_epoch(), 4);
  EXPECT_EQ(moved.running().progress().rank_balancedness(), 1.0);
  EXPECT_EQ(moved.running().progress().plan_epoch(), 4);
  std::vector<v1::ExpertsPlaced> placed;
  std::vector<v1::ExpertLoads> loads;
  for (const Report& report : sent_) {
    if (report.has_experts_placed()) placed.push_back(report.experts_placed());
    if (report.has_expert_loads()) loads.push_back(report.expert_loads());
  }
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_EQ(placed[0].placement().layers_size(), 1);  // from the checkpoint
  EXPECT_EQ(placed[1].plan_epoch(), 4);
  EXPECT_EQ(placed[1].step(), 1);
  EXPECT_EQ(placed[1].seconds(), 0.25);
  EXPECT_EQ(placed[1].max_rank_bytes(), 30);
  EXPECT_FALSE(placed[1].has_placement());
  // Steps before and after it are told apart.
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].plan_epoch(), 3);
  EXPECT_EQ(loads[0].last_step(), 1);
  EXPECT_EQ(loads[0].steps_left(), 4);
  EXPECT_EQ(loads[0].slots_per_rank(), 2);
  EXPECT_EQ(loads[0].expert_seconds(), 0.5);
  EXPECT_EQ(loads[0].expert_bytes(), 10);
  EXPECT_EQ(loads[0].expert_state_bytes(), 20);
  EXPECT_THAT(loads[0].layers(0).rank_tokens(), ElementsAre(6, 2));
  EXPECT_EQ(loads[1].plan_epoch(), 4);
  EXPECT_THAT(loads[1].layers(0).rank_tokens(), ElementsAre(4, 4));
  EXPECT_THAT(registry_.Text(),
              HasSubstr("cadre_moe_rebalance_seconds_count 1"));
}

TEST_F(SessionTest, StepsBecomeProgressScalarsAndLoads) {
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  SyncRequest during;
  script_.train = [&](TrainObserver* observer) {
    for (int step = 1; step <= 5; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.total_steps = 5;
      metrics.loss = 3.0 / step;
      metrics.step_seconds = 2.0;
      metrics.expert_tokens = {{1, 3}};
      observer->OnStep(metrics);
    }
    link_.FillState(&during);
    return TrainOutcome::kFinished;
  };
  EXPECT_EQ(Run().result(), EndedState::RESULT_DONE);
  EXPECT_EQ(during.running().step(), 5);
  EXPECT_EQ(during.running().collective_seq(), 11);
  const auto& progress = during.running().progress();
  EXPECT_EQ(progress.step(), 5);
  EXPECT_DOUBLE_EQ(progress.percent(), 100.0);
  EXPECT_DOUBLE_EQ(progress.first_loss(), 3.0);
  EXPECT_DOUBLE_EQ(progress.loss(), 0.6);
  EXPECT_DOUBLE_EQ(progress.expert_balancedness(), 2.0 / 3.0);
  EXPECT_TRUE(progress.estimate_ready());
  int scalars = 0;
  for (const Report& report : sent_) {
    scalars += report.has_scalars();
    if (!report.has_expert_loads()) continue;
    EXPECT_EQ(report.expert_loads().first_step(), 1);
    EXPECT_EQ(report.expert_loads().last_step(), 5);
    EXPECT_EQ(report.expert_loads().layers(0).tokens(1), 15);
  }
  EXPECT_EQ(scalars, 5);
}

TEST_F(SessionTest, AStopWithASaveEndsWhenRankZeroHasSealed) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  const FilesSaved saved = SaveFile();
  script_.train = [&](TrainObserver* observer) {
    link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
    EXPECT_TRUE(observer->StopRequested());
    observer->OnPhase(TrainPhase::kSave);
    observer->OnFilesSaved(saved);
    return TrainOutcome::kStopped;
  };
  std::thread coordinator([&] {
    // As soon as the files are reported, whenever that is.
    SyncRequest request;
    while (request.reports_size() == 0) {
      std::this_thread::yield();
      reports_.AppendTo(&request);
    }
    EXPECT_EQ(request.reports(0).files_saved().files(0).bytes(), 10);
    OrderSeal(saved);
  });
  const EndedState ended = Run();
  coordinator.join();
  EXPECT_EQ(ended.result(), EndedState::RESULT_STOPPED);
  EXPECT_EQ(ended.evidence(), "pause");
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].checkpoint_sealed().step(), 5);
  EXPECT_OK(VerifyCheckpoint(dir_.string(),
                             sent_[1].checkpoint_sealed().manifest_sha256())
                .status());
}

TEST_F(SessionTest, StepsCountAsDoneWhenTheLastSaveIsSealed) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  const FilesSaved saved = SaveFile();
  script_.train = [&](TrainObserver* observer) {
    observer->OnFilesSaved(saved);
    return TrainOutcome::kFinished;
  };
  std::thread coordinator([&] {
    SyncRequest state;
    while (state.reports_size() == 0) {
      std::this_thread::yield();
      reports_.AppendTo(&state);
    }
    OrderSeal(saved);
    state.Clear();
    while (!state.running().steps_done()) {
      std::this_thread::yield();
      link_.FillState(&state);
    }
    reports_.AppendTo(&state);
    ASSERT_EQ(state.reports_size(), 2);
    EXPECT_EQ(state.reports(1).checkpoint_sealed().step(), 5);
    link_.SetTarget(DesiredRun::TARGET_EXPORT);
  });
  EXPECT_EQ(Run().result(), EndedState::RESULT_DONE);
  coordinator.join();
}

TEST_F(SessionTest, AnotherRankThanZeroDoesNotWaitForTheSeal) {
  assignment_.set_rank(1);
  assignment_.mutable_plan()->set_world_size(2);
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.train = [&](TrainObserver* observer) {
    link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
    observer->OnFilesSaved(SaveFile());
    return TrainOutcome::kStopped;
  };
  EXPECT_EQ(Run().result(), EndedState::RESULT_STOPPED);
}

TEST_F(SessionTest, ASealThatFailsIsAnEventAndTrainingGoesOn) {
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  FilesSaved saved = SaveFile();
  script_.train = [&](TrainObserver* observer) {
    observer->OnFilesSaved(saved);
    saved.files[0].bytes = 11;  // not what is on disk
    OrderSeal(saved);
    StepMetrics metrics;
    metrics.step = metrics.total_steps = 5;
    observer->OnStep(metrics);
    return TrainOutcome::kFinished;
  };
  EXPECT_EQ(Run().result(), EndedState::RESULT_DONE);
  int failed = 0;
  for (const Report& report : sent_) {
    failed += report.checkpoint_failed().step() == saved.step;
  }
  EXPECT_EQ(failed, 1);
}

TEST_F(SessionTest, AStopNowAbortsTrainingAndIsNoError) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.train = [&](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancelled");
    script_.aborted.WaitForNotification();  // as inside a collective
    return absl::AbortedError("aborted");
  };
  const EndedState ended = Run();
  EXPECT_EQ(ended.result(), EndedState::RESULT_ABORTED);
  EXPECT_EQ(ended.evidence(), "cancelled");
}

TEST_F(SessionTest, AStopBeforeTrainingEndsWithoutTraining) {
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    ADD_FAILURE() << "trained";
    return TrainOutcome::kFinished;
  };
  EXPECT_EQ(Run().result(), EndedState::RESULT_STOPPED);
}

TEST_F(SessionTest, RemovesCheckpointsBetweenSteps) {
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  const auto old = dir_ / "step-00000001.attempt-1";
  std::filesystem::create_directory(old);
  link_.RequestRemovals({old.string(), dir_.string()});
  EXPECT_EQ(Run().result(), EndedState::RESULT_DONE);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(dir_));  // not a checkpoint's name
}

}  // namespace
}  // namespace session_test
}  // namespace cadre
