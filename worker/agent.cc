#include "worker/agent.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "worker/agent_session.h"

namespace cadre {

using cadre::v1::DesiredRun;
using cadre::v1::STOP_MODE_CHECKPOINT;
using cadre::v1::STOP_MODE_NOW;

namespace {

// No answer may make the worker call more often than this, nor more seldom.
constexpr absl::Duration kMinPause = absl::Milliseconds(5);
constexpr absl::Duration kMaxPause = absl::Seconds(10);

}  // namespace

Agent::Agent(AgentOptions options, std::shared_ptr<grpc::Channel> channel,
             SessionBody body, WorkerMetrics* metrics)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      body_(std::move(body)),
      metrics_(metrics) {}

Agent::~Agent() {
  Abort();
  if (thread_.joinable()) thread_.join();
}

void Agent::Start() {
  last_answer_ = options_.clock->Monotonic();
  next_sync_ = options_.timeouts.sync_interval;
  thread_ = std::thread([this] { Run(); });
}

void Agent::Drain() {
  std::lock_guard<std::mutex> lock(mutex_);
  draining_ = true;
  kicked_ = true;
  wake_.notify_all();
}

void Agent::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborting_ = true;
  if (call_ != nullptr) call_->TryCancel();
  wake_.notify_all();
}

AgentExit Agent::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [this] { return exit_.has_value(); });
  return *exit_;
}

void Agent::Kick() {
  std::lock_guard<std::mutex> lock(mutex_);
  kicked_ = true;
  wake_.notify_all();
}

void Agent::Leave(int exit_code, const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!exit_) exit_ = AgentExit{exit_code, reason};
  wake_.notify_all();
}

void Agent::Pause(absl::Duration limit, bool may_kick) {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_for(lock, absl::ToChronoNanoseconds(limit),
                 [&] { return exit_ || aborting_ || (may_kick && kicked_); });
  kicked_ = false;
}

void Agent::Run() {
  std::mt19937_64 random(std::random_device{}());
  std::uniform_real_distribution<double> jitter(0.5, 1.5);
  for (;;) {
    ++rounds_;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (exit_) break;
      if (aborting_) {
        exit_ = AgentExit{1, "aborted"};
        break;
      }
    }
    CheckDevice();
    const bool answered = SyncOnce();
    CheckOrphan();
    CheckStuck();
    CheckDrain();
    absl::Duration pause = std::clamp(next_sync_, kMinPause, kMaxPause);
    if (!answered) {
      // Doubled with each failure; the jitter keeps a fleet from calling a
      // restarted coordinator in step.
      pause = std::min(options_.min_backoff * (1 << std::min(num_failures_, 8)),
                       options_.max_backoff) *
              jitter(random);
    }
    Pause(pause, answered);
  }
  // Whatever the reason: the session's thread must not outlive the agent.
  if (session_ != nullptr) {
    session_->link.RequestStop(STOP_MODE_NOW, "the worker leaves");
    const auto deadline =
        std::chrono::steady_clock::now() +
        absl::ToChronoNanoseconds(options_.timeouts.abort_grace);
    while (!session_->returned && std::chrono::steady_clock::now() < deadline) {
      Pause(absl::Milliseconds(20), false);
    }
    if (!session_->returned && options_.on_stuck) options_.on_stuck();
    session_->thread.join();
    session_.reset();
  }
  metrics_->SetState("stopped");
  Leave(0, "");
}

void Agent::StartSession(const DesiredRun& run) {
  CADRE_LOG(INFO) << "attempt " << run.attempt_epoch() << " of "
                  << run.assignment().job() << ": rank "
                  << run.assignment().rank() << " of "
                  << run.assignment().plan().world_size();
  session_ = std::make_unique<Session>(run, &reports_, [this] { Kick(); });
  Session* session = session_.get();
  session->thread = std::thread([this, session, assignment = run.assignment()] {
    body_(assignment, &session->link);
    CADRE_CHECK(session->link.ended()) << "session left without a result";
    session->returned = true;
    Kick();
  });
}

bool Agent::DropSession(const std::string& reason) {
  if (session_ == nullptr) return true;
  if (!session_->returned) {
    // An ended session is only tidying up; one that runs must stop.
    session_->link.RequestStop(STOP_MODE_NOW, reason);
    if (!session_->told_to_stop) {
      session_->told_to_stop = options_.clock->Monotonic();
    }
    return false;
  }
  session_->thread.join();
  CADRE_LOG(INFO) << "attempt " << session_->link.attempt_epoch() << " of "
                  << session_->job << " is over on this worker";
  session_.reset();
  Kick();
  return true;
}

void Agent::CheckOrphan() {
  if (session_ == nullptr || connected_) return;
  const absl::Duration silent = options_.clock->Monotonic() - last_answer_;
  if (silent < options_.timeouts.orphan_limit) return;
  session_->link.RequestStop(STOP_MODE_CHECKPOINT,
                             absl::StrCat("no answer from the coordinator for ",
                                          absl::FormatDuration(silent)));
}

void Agent::CheckStuck() {
  if (session_ == nullptr || !session_->told_to_stop || session_->returned ||
      session_->stuck_reported) {
    return;
  }
  if (options_.clock->Monotonic() - *session_->told_to_stop <
      options_.stuck_limit) {
    return;
  }
  session_->stuck_reported = true;
  CADRE_LOG(ERROR) << "attempt " << session_->link.attempt_epoch() << " of "
                   << session_->job << " did not stop within "
                   << absl::FormatDuration(options_.stuck_limit);
  if (options_.on_stuck) options_.on_stuck();
}

void Agent::CheckDevice() {
  if (session_ == nullptr ||
      session_->link.cause() != cadre::v1::FAILURE_CAUSE_DEVICE_ERROR) {
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (drained_.exit_code != 0) return;
  CADRE_LOG(ERROR) << "the device failed: leaving, so that a new process can "
                      "open it anew";
  draining_ = true;
  drained_ = {kAgentExitDevice, "the device failed"};
}

void Agent::CheckDrain() {
  bool draining = false;
  AgentExit drained;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    draining = draining_;
    drained = drained_;
  }
  if (!draining) return;
  const absl::Duration now = options_.clock->Monotonic();
  if (!drain_since_) {
    CADRE_LOG(INFO) << "draining: "
                    << (session_ == nullptr ? "no job to save"
                                            : "the job saves and moves");
    drain_since_ = now;
  }
  if (session_ == nullptr &&
      ((idle_while_draining_acknowledged_ && reports_.empty()) ||
       !connected_)) {
    return Leave(drained.exit_code, drained.reason);
  }
  // Nobody will tell the session to save: do it without being told.
  if (session_ != nullptr && !connected_ &&
      now - last_answer_ > options_.timeouts.lease_ttl) {
    session_->link.RequestStop(STOP_MODE_CHECKPOINT,
                               "the worker drains without a coordinator");
    if (session_->returned) {
      return Leave(drained.exit_code,
                   drained.reason + " without a coordinator");
    }
  }
  if (now - *drain_since_ > options_.timeouts.drain_deadline) {
    Leave(drained.exit_code,
          absl::StrCat("the job could not be saved within ",
                       absl::FormatDuration(options_.timeouts.drain_deadline)));
  }
}

}  // namespace cadre
