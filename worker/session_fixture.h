#ifndef CADRE_WORKER_SESSION_FIXTURE_H_
#define CADRE_WORKER_SESSION_FIXTURE_H_

// A session whose engine does what the test says. For tests.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "base/metrics/registry.h"
#include "base/test_folder.h"
#include "worker/session.h"

namespace cadre {
namespace session_test {

using cadre::v1::Assignment;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using cadre::v1::Report;
using cadre::v1::SyncRequest;

// What a test wants the engine to do.
struct Script {
  absl::Status create = absl::OkStatus();
  std::function<absl::StatusOr<TrainOutcome>(TrainObserver*)> train =
      [](TrainObserver*) { return TrainOutcome::kFinished; };
  absl::StatusOr<ExportedArtifact> artifact =
      ExportedArtifact{.kind = "adapter", .dir = "/out/adapter", .bytes = 9};
  absl::Status device;  // what the device says when asked for its memory
  absl::Notification aborted;
  TrainerOptions seen;
};

class ScriptedTrainer final : public Trainer {
 public:
  ScriptedTrainer(Script* script, TrainObserver* observer)
      : script_(script), observer_(observer) {}
  absl::StatusOr<TrainOutcome> Train() override {
    observer_->OnPhase(TrainPhase::kTrain);
    return script_->train(observer_);
  }
  absl::StatusOr<ExportedArtifact> Export() override {
    return script_->artifact;
  }
  void Abort() override {
    if (!script_->aborted.HasBeenNotified()) script_->aborted.Notify();
  }
  int64_t step() const override { return 5; }
  int64_t total_steps() const override { return 5; }
  int64_t collective_seq() const override { return 11; }

 private:
  Script* const script_;
  TrainObserver* const observer_;
};

class ScriptedBackend final : public DeviceBackend {
 public:
  explicit ScriptedBackend(Script* script) : script_(script) {}
  const DeviceFacts& facts() const override { return facts_; }
  absl::StatusOr<DeviceMemory> Memory() const override {
    if (!script_->device.ok()) return script_->device;
    return DeviceMemory();
  }
  absl::Status CanTrain() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerRequest& request) override {
    script_->seen = request.options;
    if (!script_->create.ok()) return script_->create;
    return std::make_unique<ScriptedTrainer>(script_, request.observer);
  }

 private:
  Script* const script_;
  const DeviceFacts facts_{.backend = "cpu"};
};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    assignment_.set_job("jobs/a");
    assignment_.set_attempt_epoch(2);
    assignment_.mutable_plan()->set_world_size(1);
    assignment_.set_total_steps(5);
    options_.backend = &backend_;
    options_.metrics = &metrics_;
  }
  void SetUp() override { dir_ = testing::NewTestFolder(); }

  // Runs the session to its end; orders must have been given, or come from the
  // script.
  EndedState Run() {
    RunSession(options_, assignment_, &link_);
    SyncRequest state;
    reports_.AppendTo(&state);
    sent_ = {state.reports().begin(), state.reports().end()};
    reports_.Accept(static_cast<int64_t>(sent_.size()));
    link_.FillState(&state);
    return state.ended();
  }

  // A save of one file at step 5, as a trainer reports it.
  FilesSaved SaveFile() {
    const std::string content = "0123456789";
    std::ofstream(dir_ / "rank-state-00000.json") << content;
    FilesSaved saved;
    saved.step = 5;
    saved.dir = dir_.string();
    saved.files = {{.path = "rank-state-00000.json",
                    .bytes = 10,
                    .sha256 = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f"
                              "96bedb9f882f7882"}};
    saved.manifest.job = "jobs/a";
    saved.manifest.attempt_epoch = 2;
    saved.manifest.step = 5;
    saved.manifest.method = "lora";
    return saved;
  }
  // What the coordinator orders after it.
  void OrderSeal(const FilesSaved& saved) {
    SealRequest request{.step = saved.step};
    auto& file = request.files.emplace_back();
    file.set_path(saved.files[0].path);
    file.set_bytes(saved.files[0].bytes);
    file.set_sha256(saved.files[0].sha256);
    link_.RequestSeal(request);
  }

  std::filesystem::path dir_;
  Script script_;
  ScriptedBackend backend_{&script_};
  MetricsRegistry registry_;
  WorkerMetrics metrics_{&registry_, {}};
  ReportBuffer reports_;
  SessionLink link_{2, &reports_, [] {}};
  Assignment assignment_;
  SessionOptions options_;
  std::vector<Report> sent_;
};

}  // namespace session_test
}  // namespace cadre

#endif  // CADRE_WORKER_SESSION_FIXTURE_H_
