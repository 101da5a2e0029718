#include "coordinator/job.h"

#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "google/rpc/error_details.pb.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

constexpr v1::JobState kValidating = v1::JOB_STATE_VALIDATING,
                       kQueued = v1::JOB_STATE_QUEUED,
                       kStarting = v1::JOB_STATE_STARTING,
                       kRunning = v1::JOB_STATE_RUNNING,
                       kRecovering = v1::JOB_STATE_RECOVERING,
                       kPausing = v1::JOB_STATE_PAUSING,
                       kPaused = v1::JOB_STATE_PAUSED,
                       kFinalizing = v1::JOB_STATE_FINALIZING,
                       kCancelling = v1::JOB_STATE_CANCELLING,
                       kSucceeded = v1::JOB_STATE_SUCCEEDED,
                       kFailed = v1::JOB_STATE_FAILED,
                       kCancelled = v1::JOB_STATE_CANCELLED;

// Every legal pair; "changes" false: a repeated verb. Written out a second time
// on purpose: a pair that is not here must be refused.
struct Row {
  v1::JobState from;
  Trigger trigger;
  v1::JobState to;
  bool changes = true;
};
const std::vector<Row>& Table() {
  using T = Trigger;
  static const auto* table = new std::vector<Row>{
      {kValidating, T::kDatasetGood, kQueued},
      {kValidating, T::kDatasetBad, kFailed},
      {kValidating, T::kPause, kPaused},
      {kValidating, T::kCancel, kCancelled},
      {kValidating, T::kResume, kValidating, false},
      {kQueued, T::kGangPlaced, kStarting},
      {kQueued, T::kPause, kPaused},
      {kQueued, T::kCancel, kCancelled},
      {kQueued, T::kResume, kQueued, false},
      {kStarting, T::kAllRunning, kRunning},
      {kStarting, T::kAttemptFailed, kRecovering},
      {kStarting, T::kPause, kPausing},
      {kStarting, T::kPreempt, kPausing},
      {kStarting, T::kDrain, kPausing},
      {kStarting, T::kDeadline, kPausing},
      {kStarting, T::kCancel, kCancelling},
      {kStarting, T::kResume, kStarting, false},
      {kRunning, T::kStepsDone, kFinalizing},
      {kRunning, T::kAttemptFailed, kRecovering},
      {kRunning, T::kPause, kPausing},
      {kRunning, T::kPreempt, kPausing},
      {kRunning, T::kDrain, kPausing},
      {kRunning, T::kDeadline, kPausing},
      {kRunning, T::kCancel, kCancelling},
      {kRunning, T::kResume, kRunning, false},
      {kRecovering, T::kGangPlaced, kStarting},
      {kRecovering, T::kNoReplacement, kQueued},
      {kRecovering, T::kGiveUp, kFailed},
      {kRecovering, T::kPause, kPausing},
      {kRecovering, T::kPreempt, kPausing},
      {kRecovering, T::kDrain, kPausing},
      {kRecovering, T::kDeadline, kPausing},
      {kRecovering, T::kCancel, kCancelling},
      {kRecovering, T::kResume, kRecovering, false},
      {kPausing, T::kStopped, kPaused},
      {kPausing, T::kPause, kPausing, false},
      {kPausing, T::kCancel, kCancelling},
      {kPaused, T::kPause, kPaused, false},
      {kPaused, T::kResume, kQueued},
      {kPaused, T::kCancel, kCancelled},
      {kFinalizing, T::kResultCommitted, kSucceeded},
      {kFinalizing, T::kAttemptFailed, kRecovering},
      {kFinalizing, T::kCancel, kCancelling},
      {kCancelling, T::kStopped, kCancelled},
      {kCancelling, T::kCancel, kCancelling, false},
      {kCancelled, T::kCancel, kCancelled, false},
  };
  return *table;
}

TEST(Next, EveryPairIsAsTheTableSays) {
  for (int number = v1::JobState_MIN; number <= v1::JobState_MAX; ++number) {
    const auto state = static_cast<v1::JobState>(number);
    for (Trigger trigger : kAllTriggers) {
      SCOPED_TRACE(StateName(state) + " + " +
                   std::string(TriggerName(trigger)));
      Position position{.state = state, .validated = true};
      if (state == kPausing) position.stop_intent = v1::STOP_INTENT_PAUSE;
      const Row* expected = nullptr;
      for (const Row& row : Table()) {
        if (row.from == state && row.trigger == trigger) expected = &row;
      }
      const auto next = Next(position, trigger);
      ASSERT_EQ(next.ok(), expected != nullptr) << next.status();
      if (expected != nullptr) {
        EXPECT_EQ(next->to, expected->to);
        EXPECT_EQ(next->changes, expected->changes);
        // Final states are final.
        EXPECT_FALSE(IsTerminal(state) && next->changes);
      } else {
        EXPECT_EQ(ErrorReason(next.status()), "JOB_STATE");
      }
    }
  }
}

TEST(Next, WhereAPauseLeadsDependsOnItsIntent) {
  const auto to = [](v1::StopIntent intent) {
    return Next({.state = kPausing, .stop_intent = intent}, Trigger::kStopped)
        ->to;
  };
  EXPECT_EQ(to(v1::STOP_INTENT_PAUSE), kPaused);
  EXPECT_EQ(to(v1::STOP_INTENT_PREEMPT), kQueued);
  EXPECT_EQ(to(v1::STOP_INTENT_DRAIN), kQueued);
  EXPECT_EQ(to(v1::STOP_INTENT_DEADLINE), kFailed);
  EXPECT_EQ(Next({.state = kRunning}, Trigger::kDrain)->stop_intent,
            v1::STOP_INTENT_DRAIN);
  EXPECT_FALSE(Next({.state = kPausing, .stop_intent = v1::STOP_INTENT_DRAIN},
                    Trigger::kPause)
                   .ok());
}

TEST(Next, AnUncheckedJobIsCheckedAgainOnResume) {
  EXPECT_EQ(Next({.state = kPaused, .validated = false}, Trigger::kResume)->to,
            kValidating);
}

TEST(Next, ARefusalNamesTheAllowedVerbs) {
  const absl::Status status =
      Next({.state = kQueued}, Trigger::kStepsDone).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("QUEUED")));
  EXPECT_THAT(GetDetail<google::rpc::PreconditionFailure>(status)
                  ->violations(0)
                  .description(),
              HasSubstr("pause, cancel"));
}

TEST(DecideRestart, ChargesTheCausesBudget) {
  RestartQuestion question{.cause = v1::FAILURE_CAUSE_COMMUNICATION,
                           .left = {{"WORKER_LOST", 1}}};
  EXPECT_TRUE(DecideRestart(question).restart);
  EXPECT_EQ(DecideRestart(question).spend, "WORKER_LOST");
  question.left["WORKER_LOST"] = 0;
  EXPECT_FALSE(DecideRestart(question).restart);
  EXPECT_THAT(DecideRestart(question).why_not, HasSubstr("WORKER_LOST"));
}

TEST(DecideRestart, NeverRepeatsTheUsersFault) {
  for (auto cause : {v1::FAILURE_CAUSE_USER, v1::FAILURE_CAUSE_DEADLINE}) {
    EXPECT_FALSE(
        DecideRestart({.cause = cause, .left = DefaultRestarts()}).restart);
    EXPECT_TRUE(IsUserError(cause));
  }
}

TEST(DecideRestart, DoesNotCountWhatOperatorsCause) {
  for (auto cause : {v1::FAILURE_CAUSE_PREEMPTED, v1::FAILURE_CAUSE_DRAINED,
                     v1::FAILURE_CAUSE_COORDINATOR}) {
    const RestartAnswer answer =
        DecideRestart({.cause = cause, .attempts_without_progress = 9});
    EXPECT_TRUE(answer.restart);
    EXPECT_EQ(answer.spend, "");
  }
}

TEST(DecideRestart, GivesUpWithoutProgressWhateverIsLeft) {
  RestartQuestion question{.cause = v1::FAILURE_CAUSE_WORKER_LOST,
                           .left = DefaultRestarts(),
                           .attempts_without_progress = 2};
  EXPECT_TRUE(DecideRestart(question).restart);
  question.attempts_without_progress = 3;
  EXPECT_FALSE(DecideRestart(question).restart);
}

TEST(DecideRestart, BacksOffWhenTheStoreFails) {
  RestartQuestion question{.cause = v1::FAILURE_CAUSE_STORAGE,
                           .left = DefaultRestarts()};
  EXPECT_EQ(DecideRestart(question).backoff, absl::Seconds(5));
  question.used = 2;
  EXPECT_EQ(DecideRestart(question).backoff, absl::Seconds(20));
  question.used = 100;
  EXPECT_EQ(DecideRestart(question).backoff, absl::Seconds(300));
}

}  // namespace
}  // namespace cadre::coordinator
