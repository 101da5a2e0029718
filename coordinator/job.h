#ifndef CADRE_COORDINATOR_JOB_H_
#define CADRE_COORDINATOR_JOB_H_

// The life of a job: which transition is legal, and whether a failed attempt
// may be repeated. Pure functions; thread-safe.
//
//   From                         Trigger            To
//   VALIDATING                   dataset good       QUEUED
//   VALIDATING                   dataset bad        FAILED
//   QUEUED, RECOVERING           gang placed        STARTING
//   STARTING                     all running        RUNNING
//   STARTING, RUNNING,
//     FINALIZING                 attempt failed     RECOVERING
//   RECOVERING                   no replacement     QUEUED
//   RECOVERING                   give up            FAILED
//   RUNNING                      steps done         FINALIZING
//   FINALIZING                   result committed   SUCCEEDED
//   VALIDATING, QUEUED           pause / cancel     PAUSED / CANCELLED
//   STARTING, RUNNING,
//     RECOVERING                 pause, preempt,
//                                drain, deadline    PAUSING (with the intent)
//   PAUSING                      stopped            PAUSED; QUEUED after
//                                                   preempt and drain; FAILED
//                                                   after deadline
//   PAUSED                       resume             QUEUED, or VALIDATING if
//                                                   it never passed
//   PAUSED                       cancel             CANCELLED
//   STARTING, RUNNING, PAUSING,
//     RECOVERING, FINALIZING     cancel             CANCELLING
//   CANCELLING                   stopped            CANCELLED
//
// SUCCEEDED, FAILED and CANCELLED are final: going on from a checkpoint is a
// new job. Repeating a verb whose end is reached or under way has no effect;
// every other pair is refused.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cadre/v1/job.pb.h"

namespace cadre::coordinator {

enum class Trigger {
  kDatasetGood,
  kDatasetBad,
  kGangPlaced,
  kAllRunning,
  kAttemptFailed,
  kNoReplacement,
  kGiveUp,
  kStepsDone,
  kResultCommitted,
  kStopped,  // the workers are idle or out of time
  kPause,
  kPreempt,
  kDrain,
  kDeadline,
  kResume,
  kCancel,
};
inline constexpr Trigger kAllTriggers[] = {
    Trigger::kDatasetGood, Trigger::kDatasetBad,    Trigger::kGangPlaced,
    Trigger::kAllRunning,  Trigger::kAttemptFailed, Trigger::kNoReplacement,
    Trigger::kGiveUp,      Trigger::kStepsDone,     Trigger::kResultCommitted,
    Trigger::kStopped,     Trigger::kPause,         Trigger::kPreempt,
    Trigger::kDrain,       Trigger::kDeadline,      Trigger::kResume,
    Trigger::kCancel,
};

// The part of a job that decides about transitions.
struct Position {
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  v1::StopIntent stop_intent = v1::STOP_INTENT_UNSPECIFIED;
  bool validated = false;  // the whole data set was checked
};

struct Transition {
  v1::JobState to = v1::JOB_STATE_UNSPECIFIED;
  v1::StopIntent stop_intent = v1::STOP_INTENT_UNSPECIFIED;
  bool changes = true;  // false: a repeated verb
};

// FAILED_PRECONDITION (JOB_STATE) names the state and the verbs allowed in it.
absl::StatusOr<Transition> Next(const Position& position, Trigger trigger);

bool IsTerminal(v1::JobState state);
// Holds workers, or waits for those of its last attempt to let go.
bool IsActive(v1::JobState state);

// "QUEUED", "WORKER_LOST": enum names without their prefix.
std::string StateName(v1::JobState state);
std::string CauseName(v1::FailureCause cause);
absl::string_view TriggerName(Trigger trigger);

// ---- failure causes --------------------------------------------------------

// True when the user can mend it.
bool IsUserError(v1::FailureCause cause);

// The entry of the restart budget that a cause draws from: WORKER_LOST,
// COMMUNICATION and DEVICE_ERROR share one. "": never restarted (USER,
// DEADLINE) or never counted (PREEMPTED, DRAINED, COORDINATOR).
std::string BudgetKey(v1::FailureCause cause);

// Restarts per budget entry unless the job file says otherwise.
const std::map<std::string, int>& DefaultRestarts();

struct RestartQuestion {
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::map<std::string, int> left;    // by budget entry
  int used = 0;                       // of this cause's entry, for back-off
  int attempts_without_progress = 0;  // this one included
};
struct RestartAnswer {
  bool restart = false;
  std::string why_not;     // when it does not restart
  absl::Duration backoff;  // wait before the next placement
  std::string spend;       // budget entry to take one from; "": none
};
RestartAnswer DecideRestart(const RestartQuestion& question);

// Attempts in a row without a newer checkpoint or a further step, after which a
// job fails whatever its budget says.
inline constexpr int kMaxAttemptsWithoutProgress = 3;

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_JOB_H_
