#include "worker/agent.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/metrics/registry.h"
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "base/status_matchers.h"
#include "cadre/v1/worker_service.grpc.pb.h"

namespace cadre {
namespace {

using cadre::v1::Assignment;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using cadre::v1::Report;
using cadre::v1::SyncRequest;
using cadre::v1::SyncResponse;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A coordinator that answers what the test says. Everything is waited for by
// condition, never by time.
class ScriptedCoordinator final : public cadre::v1::WorkerService::Service {
 public:
  using Answer = std::function<absl::Status(const SyncRequest&, SyncResponse*)>;

  // `address` of a former instance, or "127.0.0.1:0".
  explicit ScriptedCoordinator(const std::string& address = "127.0.0.1:0") {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~ScriptedCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  const std::string& address() const { return address_; }

  grpc::Status Sync(grpc::ServerContext*, const SyncRequest* request,
                    SyncResponse* response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(*request);
    changed_.notify_all();
    response->set_generation(generation_);
    response->set_cluster_uuid("cluster");
    response->mutable_next_sync()->set_nanos(5'000'000);
    return ToGrpcStatus(answer_(*request, response));
  }

  void SetAnswer(Answer answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    answer_ = std::move(answer);
  }
  void SetGeneration(int64_t generation) {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_ = generation;
  }

  // The first request from now on (or since the last WaitFor) that fits.
  SyncRequest WaitFor(const std::function<bool(const SyncRequest&)>& fits) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (!requests_.empty()) {
        SyncRequest request = std::move(requests_.front());
        requests_.pop_front();
        if (fits(request)) return request;
      }
      changed_.wait(lock);
    }
  }
  // `n` more requests, the last one is returned.
  SyncRequest WaitForNext(int n = 1) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      requests_.clear();
    }
    return WaitFor([&n](const SyncRequest&) { return --n == 0; });
  }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SyncRequest> requests_;
  int64_t generation_ = 1;
  Answer answer_ = [](const SyncRequest&, SyncResponse* response) {
    response->mutable_idle();
    return absl::OkStatus();
  };
};

SyncResponse RunResponse(int64_t epoch, DesiredRun::Target target,
                         bool with_assignment,
                         const std::string& job = "jobs/a") {
  SyncResponse response;
  DesiredRun* run = response.mutable_run();
  run->set_attempt_epoch(epoch);
  run->set_assignment_digest(absl::StrCat(job, "#", epoch));
  run->set_target(target);
  if (with_assignment) {
    run->mutable_assignment()->set_job(job);
    run->mutable_assignment()->set_attempt_epoch(epoch);
    run->mutable_assignment()->mutable_plan()->set_world_size(1);
  }
  return response;
}

// Keeps what the coordinator script has set, adds the desired state.
ScriptedCoordinator::Answer Want(SyncResponse desired) {
  return [desired](const SyncRequest&, SyncResponse* response) {
    response->MergeFrom(desired);
    return absl::OkStatus();
  };
}

ScriptedCoordinator::Answer WantRun(int64_t epoch, DesiredRun::Target target,
                                    const std::string& job = "jobs/a") {
  return [=](const SyncRequest& request, SyncResponse* response) {
    const std::string digest = absl::StrCat(job, "#", epoch);
    response->MergeFrom(
        RunResponse(epoch, target, request.assignment_digest() != digest, job));
    return absl::OkStatus();
  };
}

EndedState Ended(EndedState::Result result) {
  EndedState ended;
  ended.set_result(result);
  return ended;
}

// Waits for orders and ends as told.
void ObedientSession(const Assignment&, SessionLink* link) {
  link->SetReady();
  const auto first = link->Wait(DesiredRun::TARGET_TRAIN, absl::Hours(1));
  if (first == SessionLink::Wake::kTarget) {
    link->SetPhase("train");
    link->SetStepsDone();
    const auto second = link->Wait(DesiredRun::TARGET_EXPORT, absl::Hours(1));
    if (second == SessionLink::Wake::kTarget) {
      return link->SetEnded(Ended(EndedState::RESULT_DONE));
    }
  }
  link->SetEnded(Ended(link->stop_mode() == cadre::v1::STOP_MODE_NOW
                           ? EndedState::RESULT_ABORTED
                           : EndedState::RESULT_STOPPED));
}

class AgentTest : public ::testing::Test {
 protected:
  void StartAgent(SessionBody body) {
    AgentOptions options;
    options.worker_id = "host.0";
    options.incarnation = "incarnation-1";
    options.build = "test";
    options.device.set_backend("cpu");
    options.min_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(20);
    options.clock = &clock_;
    options.stuck_limit = absl::Seconds(30);
    options.on_stuck = [this] { stuck_.Notify(); };
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 20);
    agent_ = std::make_unique<Agent>(
        options,
        grpc::CreateCustomChannel(coordinator_->address(),
                                  grpc::InsecureChannelCredentials(),
                                  arguments),
        std::move(body), &metrics_);
    agent_->Start();
  }

  FakeClock clock_;
  MetricsRegistry registry_;
  WorkerMetrics metrics_{&registry_, {.worker = "host.0"}};
  // Before agent_: its session's thread uses them.
  absl::Notification release_, stuck_;
  std::unique_ptr<ScriptedCoordinator> coordinator_ =
      std::make_unique<ScriptedCoordinator>();
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentTest, SaysWhoItIsWhenIdle) {
  StartAgent(ObedientSession);
  const SyncRequest request = coordinator_->WaitForNext(2);
  EXPECT_EQ(request.worker_id(), "host.0");
  EXPECT_EQ(request.incarnation(), "incarnation-1");
  EXPECT_EQ(request.cluster_uuid(), "cluster");
  EXPECT_EQ(request.generation(), 1);
  EXPECT_EQ(request.protocol_version(), kSyncProtocolVersion);
  EXPECT_EQ(request.device().backend(), "cpu");
  EXPECT_TRUE(request.has_idle());
  EXPECT_THAT(request.job(), IsEmpty());
}

TEST_F(AgentTest, CountsItsCallsAlsoThoseThatFail) {
  StartAgent(ObedientSession);
  const SyncRequest first =
      coordinator_->WaitFor([](const SyncRequest&) { return true; });
  EXPECT_EQ(first.sync_seq(), 1);
  coordinator_->SetAnswer([](const SyncRequest&, SyncResponse*) {
    return absl::UnavailableError("busy");
  });
  int64_t last = coordinator_->WaitForNext().sync_seq();
  for (int i = 0; i < 3; ++i) {
    const int64_t next =
        coordinator_->WaitFor([](const SyncRequest&) { return true; })
            .sync_seq();
    EXPECT_EQ(next, last + 1);
    last = next;
  }
}

TEST_F(AgentTest, TakesAnAssignmentThroughAllTargetsToIdle) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(3, DesiredRun::TARGET_PREPARE));
  SyncRequest request =
      coordinator_->WaitFor([](const auto& r) { return r.has_ready(); });
  EXPECT_EQ(request.attempt_epoch(), 3);
  EXPECT_EQ(request.job(), "jobs/a");
  EXPECT_EQ(request.assignment_digest(), "jobs/a#3");
  coordinator_->SetAnswer(WantRun(3, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.running().steps_done(); });
  coordinator_->SetAnswer(WantRun(3, DesiredRun::TARGET_EXPORT));
  request = coordinator_->WaitFor([](const auto& r) { return r.has_ended(); });
  EXPECT_EQ(request.ended().result(), EndedState::RESULT_DONE);
  // Kept until the coordinator answers Idle.
  EXPECT_TRUE(coordinator_->WaitForNext(3).has_ended());
  SyncResponse idle;
  idle.mutable_idle();
  coordinator_->SetAnswer(Want(idle));
  coordinator_->WaitFor([](const auto& r) { return r.has_idle(); });
}

TEST_F(AgentTest, HeartbeatsGoOnWhileTheSessionBlocks) {
  StartAgent([&](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    release_.WaitForNotification();
    link->SetEnded(Ended(EndedState::RESULT_DONE));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.has_running(); });
  EXPECT_TRUE(coordinator_->WaitForNext(20).has_running());
  release_.Notify();
  coordinator_->WaitFor([](const auto& r) { return r.has_ended(); });
}

TEST_F(AgentTest, ReadsStepAndCollectivesWithEachSync) {
  // Shared: the agent may ask once more when this body has ended.
  const auto seq = std::make_shared<std::atomic<int64_t>>(0);
  StartAgent([this, seq](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    link->Attach({.abort = [] {},
                  .step = [] { return int64_t{7}; },
                  .collective_seq = [seq] { return ++*seq; }});
    release_.WaitForNotification();
    link->Detach();
    link->SetEnded(Ended(EndedState::RESULT_DONE));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  const SyncRequest first = coordinator_->WaitFor(
      [](const auto& r) { return r.running().step() == 7; });
  const SyncRequest second = coordinator_->WaitForNext();
  EXPECT_GT(second.running().collective_seq(),
            first.running().collective_seq());
  release_.Notify();
}

TEST_F(AgentTest, ReportsAreSentAgainUntilAccepted) {
  StartAgent([](const Assignment&, SessionLink* link) {
    for (int step = 1; step <= 3; ++step) {
      Report report;
      report.mutable_scalars()->set_step(step);
      link->AddReport(report);
    }
    ObedientSession({}, link);
  });
  coordinator_->SetAnswer(WantRun(5, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor([](const auto& r) { return r.reports_size() == 3; });
  const SyncRequest again = coordinator_->WaitForNext(3);
  ASSERT_EQ(again.reports_size(), 3);
  EXPECT_EQ(again.reports(0).report_seq(), 1);
  EXPECT_EQ(again.reports(0).attempt_epoch(), 5);
  SyncResponse accept = RunResponse(5, DesiredRun::TARGET_PREPARE, false);
  accept.set_accepted_report_seq(2);
  coordinator_->SetAnswer(Want(accept));
  const SyncRequest left = coordinator_->WaitFor(
      [](const auto& r) { return r.reports_size() == 1; });
  EXPECT_EQ(left.reports(0).report_seq(), 3);
  accept.set_accepted_report_seq(3);
  coordinator_->SetAnswer(Want(accept));
  coordinator_->WaitFor([](const auto& r) { return r.reports_size() == 0; });
}

TEST_F(AgentTest, AnAnswerOfALowerGenerationHasNoPower) {
  StartAgent([&](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    release_.WaitForNotification();
    link->SetEnded(Ended(EndedState::RESULT_DONE));
  });
  coordinator_->SetGeneration(7);
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor(
      [](const auto& r) { return r.has_running() && r.generation() == 7; });
  coordinator_->SetGeneration(6);
  SyncResponse idle;
  idle.mutable_idle();
  coordinator_->SetAnswer(Want(idle));
  const SyncRequest request = coordinator_->WaitForNext(4);
  EXPECT_TRUE(request.has_running());
  EXPECT_EQ(request.generation(), 7);
  EXPECT_THAT(registry_.Text(),
              HasSubstr("cadre_worker_syncs_total{result=\"stale\"}"));
  release_.Notify();
}

TEST_F(AgentTest, AStopForAnotherAttemptHasNoEffect) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(4, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor([](const auto& r) { return r.has_ready(); });
  SyncResponse stop;
  stop.mutable_stop()->set_attempt_epoch(3);
  stop.mutable_stop()->set_mode(cadre::v1::STOP_MODE_NOW);
  coordinator_->SetAnswer(Want(stop));
  EXPECT_TRUE(coordinator_->WaitForNext(4).has_ready());
  stop.mutable_stop()->set_attempt_epoch(4);
  coordinator_->SetAnswer(Want(stop));
  const SyncRequest ended =
      coordinator_->WaitFor([](const auto& r) { return r.has_ended(); });
  EXPECT_EQ(ended.ended().result(), EndedState::RESULT_ABORTED);
}

TEST_F(AgentTest, ANewerAttemptReplacesTheOld) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(4, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor([](const auto& r) { return r.has_ready(); });
  coordinator_->SetAnswer(WantRun(5, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor(
      [](const auto& r) { return r.has_ready() && r.attempt_epoch() == 5; });
}

TEST_F(AgentTest, AnOlderAttemptOfTheSameJobIsIgnored) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(5, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor([](const auto& r) { return r.has_ready(); });
  coordinator_->SetAnswer(WantRun(4, DesiredRun::TARGET_PREPARE));
  const SyncRequest request = coordinator_->WaitForNext(4);
  EXPECT_EQ(request.attempt_epoch(), 5);
  EXPECT_TRUE(request.has_ready());
}

TEST_F(AgentTest, AStopNowAbortsTheEngine) {
  StartAgent([&](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    link->Attach({.abort = [&] { release_.Notify(); }});
    release_.WaitForNotification();  // as a thread inside a collective
    link->Detach();
    link->SetEnded(Ended(EndedState::RESULT_ABORTED));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.has_running(); });
  SyncResponse stop;
  stop.mutable_stop()->set_attempt_epoch(1);
  stop.mutable_stop()->set_mode(cadre::v1::STOP_MODE_NOW);
  coordinator_->SetAnswer(Want(stop));
  coordinator_->WaitFor([](const auto& r) { return r.has_ended(); });
}

TEST_F(AgentTest, ASessionThatDoesNotStopIsReportedAsStuck) {
  StartAgent([&](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    release_.WaitForNotification();
    link->SetEnded(Ended(EndedState::RESULT_ABORTED));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.has_running(); });
  SyncResponse stop;
  stop.mutable_stop()->set_attempt_epoch(1);
  stop.mutable_stop()->set_mode(cadre::v1::STOP_MODE_NOW);
  coordinator_->SetAnswer(Want(stop));
  coordinator_->WaitFor([](const auto& r) { return r.has_stopping(); });
  clock_.Advance(absl::Seconds(31));
  stuck_.WaitForNotification();
  release_.Notify();
  coordinator_->WaitFor([](const auto& r) { return r.has_ended(); });
}

TEST_F(AgentTest, TrainsOnAndJoinsAgainWhenTheCoordinatorRestarts) {
  StartAgent([&](const Assignment&, SessionLink* link) {
    link->SetPhase("train");
    Report report;
    report.mutable_files_saved()->set_step(10);
    link->AddReport(report);
    release_.WaitForNotification();
    link->SetEnded(Ended(EndedState::RESULT_DONE));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor(
      [](const auto& r) { return r.has_running() && r.reports_size() == 1; });
  const std::string address = coordinator_->address();
  coordinator_.reset();
  coordinator_ = std::make_unique<ScriptedCoordinator>(address);
  coordinator_->SetGeneration(2);
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  const SyncRequest request =
      coordinator_->WaitFor([](const auto& r) { return r.generation() == 2; });
  EXPECT_TRUE(request.has_running());
  EXPECT_EQ(request.attempt_epoch(), 1);
  ASSERT_EQ(request.reports_size(), 1);
  EXPECT_EQ(request.reports(0).files_saved().step(), 10);
  release_.Notify();
}

TEST_F(AgentTest, SavesAndHoldsWhenTheCoordinatorIsGoneForLong) {
  StartAgent([&](const Assignment& assignment, SessionLink* link) {
    link->SetPhase("train");
    // A trainer looks at its step boundaries; this one waits for the order.
    EXPECT_EQ(link->Wait(DesiredRun::TARGET_EXPORT, absl::Hours(1)),
              SessionLink::Wake::kStopCheckpoint);
    EXPECT_THAT(link->stop_reason(), HasSubstr("no answer"));
    release_.Notify();
    link->SetEnded(Ended(EndedState::RESULT_STOPPED));
  });
  coordinator_->SetAnswer(WantRun(1, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.has_running(); });
  coordinator_->SetAnswer([](const SyncRequest&, SyncResponse*) {
    return absl::UnavailableError("away");
  });
  coordinator_->WaitForNext(2);
  clock_.Advance(absl::Seconds(1801));
  release_.WaitForNotification();
  // It holds its state and tells it as soon as someone listens.
  EXPECT_TRUE(coordinator_->WaitForNext(3).has_ended());
}

TEST_F(AgentTest, LeavesForGoodWhenAnotherProcessSpeaksForItsId) {
  StartAgent(ObedientSession);
  SyncResponse exit;
  exit.mutable_exit()->set_reason("replaced by incarnation-2");
  coordinator_->SetAnswer(Want(exit));
  const AgentExit left = agent_->Wait();
  EXPECT_EQ(left.exit_code, 78);
  EXPECT_THAT(left.reason, HasSubstr("replaced by incarnation-2"));
}

TEST_F(AgentTest, LeavesWhenTheCoordinatorSpeaksAnotherProtocol) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer([](const SyncRequest&, SyncResponse*) {
    return Error(absl::StatusCode::kFailedPrecondition, "PROTOCOL_VERSION",
                 "takes versions 2 and 3");
  });
  EXPECT_EQ(agent_->Wait().exit_code, 78);
}

TEST_F(AgentTest, JoinsAnotherClusterWhenIdle) {
  StartAgent(ObedientSession);
  coordinator_->WaitFor(
      [](const auto& r) { return !r.cluster_uuid().empty(); });
  coordinator_->SetAnswer([](const SyncRequest& request, SyncResponse* out) {
    if (request.cluster_uuid() == "cluster") {
      return Error(absl::StatusCode::kFailedPrecondition, "CLUSTER_MISMATCH",
                   "this is cluster 'other'");
    }
    out->set_cluster_uuid("other");
    out->mutable_idle();
    return absl::OkStatus();
  });
  coordinator_->WaitFor(
      [](const auto& r) { return r.cluster_uuid() == "other"; });
}

TEST_F(AgentTest, ADrainSavesTheJobAndThenLeaves) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(2, DesiredRun::TARGET_TRAIN));
  coordinator_->WaitFor([](const auto& r) { return r.running().steps_done(); });
  // As the coordinator does: a draining worker's job is stopped with a save.
  coordinator_->SetAnswer([](const SyncRequest& request, SyncResponse* out) {
    if (request.has_running() && request.draining()) {
      out->mutable_stop()->set_attempt_epoch(2);
      out->mutable_stop()->set_mode(cadre::v1::STOP_MODE_CHECKPOINT);
    } else if (request.has_running()) {
      out->MergeFrom(RunResponse(2, DesiredRun::TARGET_TRAIN, false));
    } else {
      out->mutable_idle();
    }
    return absl::OkStatus();
  });
  agent_->Drain();
  EXPECT_EQ(agent_->Wait().exit_code, 0);
}

TEST_F(AgentTest, AnIdleDrainLeavesOnceTheCoordinatorKnows) {
  StartAgent(ObedientSession);
  coordinator_->WaitForNext();
  agent_->Drain();
  const SyncRequest request =
      coordinator_->WaitFor([](const auto& r) { return r.draining(); });
  EXPECT_TRUE(request.has_idle());
  EXPECT_EQ(agent_->Wait().exit_code, 0);
}

TEST_F(AgentTest, LeavesWhenItsDeviceHasFailed) {
  StartAgent([](const Assignment&, SessionLink* link) {
    EndedState ended = Ended(EndedState::RESULT_ERROR);
    ended.set_cause(cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
    link->SetEnded(ended);
  });
  // No more work for it, but its end is heard first.
  coordinator_->SetAnswer([](const SyncRequest& request, SyncResponse* out) {
    if (request.has_ended() && request.draining()) {
      out->mutable_idle();
      return absl::OkStatus();
    }
    return WantRun(2, DesiredRun::TARGET_TRAIN)(request, out);
  });
  const SyncRequest request = coordinator_->WaitFor(
      [](const auto& r) { return r.has_ended() && r.draining(); });
  EXPECT_EQ(request.ended().cause(), cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  coordinator_->SetAnswer([](const SyncRequest&, SyncResponse* out) {
    out->mutable_idle();
    return absl::OkStatus();
  });
  const AgentExit left = agent_->Wait();
  EXPECT_EQ(left.exit_code, 71);
  EXPECT_EQ(left.reason, "the device failed");
}

TEST_F(AgentTest, ASecondSignalLeavesWithoutASave) {
  StartAgent(ObedientSession);
  coordinator_->SetAnswer(WantRun(2, DesiredRun::TARGET_PREPARE));
  coordinator_->WaitFor([](const auto& r) { return r.has_ready(); });
  agent_->Drain();
  agent_->Abort();
  EXPECT_EQ(agent_->Wait().exit_code, 1);
}

TEST_F(AgentTest, KeepsTryingWithoutACoordinator) {
  coordinator_->SetAnswer([](const SyncRequest&, SyncResponse*) {
    return absl::UnavailableError("starting");
  });
  StartAgent(ObedientSession);
  coordinator_->WaitForNext(5);
  SyncResponse idle;
  idle.mutable_idle();
  coordinator_->SetAnswer(Want(idle));
  coordinator_->WaitFor(
      [](const auto& r) { return !r.cluster_uuid().empty(); });
}

}  // namespace
}  // namespace cadre
