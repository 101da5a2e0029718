#include "coordinator/job.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rpc/error.h"
#include "google/rpc/error_details.pb.h"

namespace cadre::coordinator {
namespace {

using v1::JobState;
using v1::StopIntent;

constexpr StopIntent kNoIntent = v1::STOP_INTENT_UNSPECIFIED;

Transition To(JobState to, StopIntent intent = kNoIntent) {
  return {.to = to, .stop_intent = intent};
}
Transition Stay(const Position& position) {
  return {.to = position.state,
          .stop_intent = position.stop_intent,
          .changes = false};
}

StopIntent IntentOf(Trigger trigger) {
  switch (trigger) {
    case Trigger::kPause:
      return v1::STOP_INTENT_PAUSE;
    case Trigger::kPreempt:
      return v1::STOP_INTENT_PREEMPT;
    case Trigger::kDrain:
      return v1::STOP_INTENT_DRAIN;
    case Trigger::kDeadline:
      return v1::STOP_INTENT_DEADLINE;
    default:
      return kNoIntent;
  }
}

// nullopt: refused.
std::optional<Transition> Find(const Position& p, Trigger trigger) {
  const bool pausable = p.state == v1::JOB_STATE_STARTING ||
                        p.state == v1::JOB_STATE_RUNNING ||
                        p.state == v1::JOB_STATE_RECOVERING;
  switch (trigger) {
    case Trigger::kDatasetGood:
      if (p.state == v1::JOB_STATE_VALIDATING) return To(v1::JOB_STATE_QUEUED);
      break;
    case Trigger::kDatasetBad:
      if (p.state == v1::JOB_STATE_VALIDATING) return To(v1::JOB_STATE_FAILED);
      break;
    case Trigger::kGangPlaced:
      if (p.state == v1::JOB_STATE_QUEUED ||
          p.state == v1::JOB_STATE_RECOVERING) {
        return To(v1::JOB_STATE_STARTING);
      }
      break;
    case Trigger::kAllRunning:
      if (p.state == v1::JOB_STATE_STARTING) return To(v1::JOB_STATE_RUNNING);
      break;
    case Trigger::kAttemptFailed:
      if (p.state == v1::JOB_STATE_STARTING ||
          p.state == v1::JOB_STATE_RUNNING ||
          p.state == v1::JOB_STATE_FINALIZING) {
        return To(v1::JOB_STATE_RECOVERING);
      }
      break;
    case Trigger::kNoReplacement:
      if (p.state == v1::JOB_STATE_RECOVERING) return To(v1::JOB_STATE_QUEUED);
      break;
    case Trigger::kGiveUp:
      if (p.state == v1::JOB_STATE_RECOVERING) return To(v1::JOB_STATE_FAILED);
      break;
    case Trigger::kStepsDone:
      if (p.state == v1::JOB_STATE_RUNNING) return To(v1::JOB_STATE_FINALIZING);
      break;
    case Trigger::kResultCommitted:
      if (p.state == v1::JOB_STATE_FINALIZING) {
        return To(v1::JOB_STATE_SUCCEEDED);
      }
      break;
    case Trigger::kStopped:
      if (p.state == v1::JOB_STATE_CANCELLING) {
        return To(v1::JOB_STATE_CANCELLED);
      }
      if (p.state != v1::JOB_STATE_PAUSING) break;
      switch (p.stop_intent) {
        case v1::STOP_INTENT_PREEMPT:
        case v1::STOP_INTENT_DRAIN:
          return To(v1::JOB_STATE_QUEUED);
        case v1::STOP_INTENT_DEADLINE:
          return To(v1::JOB_STATE_FAILED);
        default:
          return To(v1::JOB_STATE_PAUSED);
      }
    case Trigger::kPause:
      if (p.state == v1::JOB_STATE_VALIDATING ||
          p.state == v1::JOB_STATE_QUEUED) {
        return To(v1::JOB_STATE_PAUSED);
      }
      if (p.state == v1::JOB_STATE_PAUSED ||
          (p.state == v1::JOB_STATE_PAUSING &&
           p.stop_intent == v1::STOP_INTENT_PAUSE)) {
        return Stay(p);
      }
      [[fallthrough]];
    case Trigger::kPreempt:
    case Trigger::kDrain:
    case Trigger::kDeadline:
      if (pausable) return To(v1::JOB_STATE_PAUSING, IntentOf(trigger));
      break;
    case Trigger::kResume:
      if (p.state == v1::JOB_STATE_PAUSED) {
        return To(p.validated ? v1::JOB_STATE_QUEUED
                              : v1::JOB_STATE_VALIDATING);
      }
      if (p.state == v1::JOB_STATE_VALIDATING ||
          p.state == v1::JOB_STATE_QUEUED || pausable) {
        return Stay(p);
      }
      break;
    case Trigger::kCancel:
      if (p.state == v1::JOB_STATE_CANCELLING ||
          p.state == v1::JOB_STATE_CANCELLED) {
        return Stay(p);
      }
      if (p.state == v1::JOB_STATE_VALIDATING ||
          p.state == v1::JOB_STATE_QUEUED || p.state == v1::JOB_STATE_PAUSED) {
        return To(v1::JOB_STATE_CANCELLED);
      }
      if (IsActive(p.state)) return To(v1::JOB_STATE_CANCELLING);
      break;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Transition> Next(const Position& position, Trigger trigger) {
  const std::optional<Transition> found = Find(position, trigger);
  if (found.has_value()) return *found;
  absl::Status status =
      Error(absl::StatusCode::kFailedPrecondition, "JOB_STATE",
            absl::StrCat("'", TriggerName(trigger), "' is not possible for a ",
                         "job in state ", StateName(position.state)),
            {{"state", StateName(position.state)}});
  google::rpc::PreconditionFailure failure;
  auto* violation = failure.add_violations();
  violation->set_type("JOB_STATE");
  std::vector<std::string> verbs;
  for (Trigger verb : {Trigger::kPause, Trigger::kResume, Trigger::kCancel}) {
    const auto next = Find(position, verb);
    if (next.has_value() && next->changes)
      verbs.emplace_back(TriggerName(verb));
  }
  violation->set_description(absl::StrCat(
      "state ", StateName(position.state),
      " allows: ", verbs.empty() ? "nothing" : absl::StrJoin(verbs, ", ")));
  AddDetail(failure, &status);
  return status;
}

bool IsTerminal(JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

bool IsActive(JobState state) {
  return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING ||
         state == v1::JOB_STATE_RECOVERING || state == v1::JOB_STATE_PAUSING ||
         state == v1::JOB_STATE_FINALIZING || state == v1::JOB_STATE_CANCELLING;
}

std::string StateName(JobState state) {
  return v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1);
}

std::string CauseName(v1::FailureCause cause) {
  return v1::FailureCause_Name(cause).substr(sizeof("FAILURE_CAUSE_") - 1);
}

absl::string_view TriggerName(Trigger trigger) {
  switch (trigger) {
    case Trigger::kDatasetGood:
      return "dataset good";
    case Trigger::kDatasetBad:
      return "dataset bad";
    case Trigger::kGangPlaced:
      return "gang placed";
    case Trigger::kAllRunning:
      return "all running";
    case Trigger::kAttemptFailed:
      return "attempt failed";
    case Trigger::kNoReplacement:
      return "no replacement";
    case Trigger::kGiveUp:
      return "give up";
    case Trigger::kStepsDone:
      return "steps done";
    case Trigger::kResultCommitted:
      return "result committed";
    case Trigger::kStopped:
      return "stopped";
    case Trigger::kPause:
      return "pause";
    case Trigger::kPreempt:
      return "preempt";
    case Trigger::kDrain:
      return "drain";
    case Trigger::kDeadline:
      return "deadline";
    case Trigger::kResume:
      return "resume";
    case Trigger::kCancel:
      return "cancel";
  }
  return "?";
}

bool IsUserError(v1::FailureCause cause) {
  return cause == v1::FAILURE_CAUSE_USER ||
         cause == v1::FAILURE_CAUSE_DEADLINE ||
         cause == v1::FAILURE_CAUSE_OUT_OF_MEMORY ||
         cause == v1::FAILURE_CAUSE_NUMERIC;
}

std::string BudgetKey(v1::FailureCause cause) {
  switch (cause) {
    case v1::FAILURE_CAUSE_OUT_OF_MEMORY:
    case v1::FAILURE_CAUSE_NUMERIC:
    case v1::FAILURE_CAUSE_STORAGE:
      return CauseName(cause);
    case v1::FAILURE_CAUSE_WORKER_LOST:
    case v1::FAILURE_CAUSE_COMMUNICATION:
    case v1::FAILURE_CAUSE_DEVICE_ERROR:
      return "WORKER_LOST";
    case v1::FAILURE_CAUSE_USER:
    case v1::FAILURE_CAUSE_DEADLINE:
    case v1::FAILURE_CAUSE_PREEMPTED:
    case v1::FAILURE_CAUSE_DRAINED:
    case v1::FAILURE_CAUSE_COORDINATOR:
      return "";
    default:
      return "INTERNAL";
  }
}

const std::map<std::string, int>& DefaultRestarts() {
  static const auto* defaults = new std::map<std::string, int>{
      {"OUT_OF_MEMORY", 1}, {"NUMERIC", 1},  {"WORKER_LOST", 10},
      {"STORAGE", 5},       {"INTERNAL", 2},
  };
  return *defaults;
}

RestartAnswer DecideRestart(const RestartQuestion& question) {
  const std::string cause = CauseName(question.cause);
  if (question.cause == v1::FAILURE_CAUSE_USER ||
      question.cause == v1::FAILURE_CAUSE_DEADLINE) {
    return {.why_not = absl::StrCat("cause ", cause, " is never repeated")};
  }
  const std::string key = BudgetKey(question.cause);
  if (key.empty()) return {.restart = true};
  if (question.attempts_without_progress >= kMaxAttemptsWithoutProgress) {
    return {.why_not = absl::StrCat(
                question.attempts_without_progress,
                " attempts in a row made no progress, the last with cause ",
                cause)};
  }
  const auto left = question.left.find(key);
  if (left == question.left.end() || left->second <= 0) {
    return {.why_not = absl::StrCat("the restart budget of ", key,
                                    " is spent (", question.used, " used)")};
  }
  RestartAnswer answer{.restart = true, .spend = key};
  if (question.cause == v1::FAILURE_CAUSE_STORAGE) {
    answer.backoff =
        std::min(absl::Seconds(300),
                 absl::Seconds(5) * (1 << std::min(question.used, 6)));
  }
  return answer;
}

}  // namespace cadre::coordinator
