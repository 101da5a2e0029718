// When and how an agent leaves.

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/agent_fixture.h"

namespace cadre {
namespace agent_test {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace agent_test
}  // namespace cadre
