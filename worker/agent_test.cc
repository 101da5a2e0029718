// What an agent tells and carries out while it stays.

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/agent_fixture.h"

namespace cadre {
namespace agent_test {
namespace {

using cadre::v1::Report;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
}  // namespace agent_test
}  // namespace cadre
