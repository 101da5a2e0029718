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
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "cadre/v1/worker_service.grpc.pb.h"

namespace cadre {

using cadre::v1::DesiredRun;
using cadre::v1::STOP_MODE_CHECKPOINT;
using cadre::v1::STOP_MODE_NOW;
using cadre::v1::SyncRequest;
using cadre::v1::SyncResponse;

namespace {

// No answer may make the worker call more often than this, nor more seldom.
constexpr absl::Duration kMinPause = absl::Milliseconds(5);
constexpr absl::Duration kMaxPause = absl::Seconds(10);

// Configuration is wrong: a supervisor must not start the process again.
constexpr int kExitConfig = 78;

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

}  // namespace

struct Agent::Session {
  Session(const DesiredRun& run, ReportBuffer* reports,
          std::function<void()> changed)
      : job(run.assignment().job()),
        digest(run.assignment_digest()),
        link(run.attempt_epoch(), reports, std::move(changed)) {}

  const std::string job;
  const std::string digest;
  SessionLink link;
  std::thread thread;
  // Monotonic time of the first order to stop NOW.
  std::optional<absl::Duration> told_to_stop;
  bool stuck_reported = false;
  // Set by the session's thread as its last action.
  std::atomic<bool> returned{false};
};

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

SyncRequest Agent::MakeRequest() {
  SyncRequest request;
  request.set_worker_id(options_.worker_id);
  request.set_incarnation(options_.incarnation);
  request.set_cluster_uuid(cluster_uuid_);
  request.set_protocol_version(kSyncProtocolVersion);
  request.set_build(options_.build);
  *request.mutable_device() = options_.device;
  request.set_generation(generation_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request.set_draining(draining_);
  }
  // The state before the reports: a report that explains a state is then never
  // missing from the request that carries the state.
  if (session_ != nullptr) {
    request.set_job(session_->job);
    request.set_assignment_digest(session_->digest);
    session_->link.FillState(&request);
  } else {
    request.mutable_idle();
  }
  reports_.AppendTo(&request);
  return request;
}

bool Agent::SyncOnce() {
  const SyncRequest request = MakeRequest();
  metrics_->SetState(request.has_idle()        ? "idle"
                     : request.has_preparing() ? "preparing"
                     : request.has_ready()     ? "ready"
                     : request.has_running()   ? "running"
                     : request.has_stopping()  ? "stopping"
                                               : "ended");
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      absl::ToChronoNanoseconds(options_.timeouts.sync_deadline));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborting_) return false;
    call_ = &context;
  }
  SyncResponse response;
  const absl::Duration begin = options_.clock->Monotonic();
  const absl::Status status =
      FromGrpcStatus(cadre::v1::WorkerService::NewStub(channel_)->Sync(
          &context, request, &response));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    call_ = nullptr;
  }
  metrics_->ObserveSync(options_.clock->Monotonic() - begin);
  if (!status.ok()) {
    metrics_->CountSync(WorkerMetrics::SyncResult::kError);
    HandleError(status);
    return false;
  }
  if (response.generation() < generation_) {
    metrics_->CountSync(WorkerMetrics::SyncResult::kStale);
    HandleError(absl::FailedPreconditionError(absl::StrCat(
        "a coordinator of generation ", response.generation(),
        " answered, but generation ", generation_,
        " was seen before: two coordinators run; stop the older one")));
    return false;
  }
  metrics_->CountSync(WorkerMetrics::SyncResult::kOk);
  metrics_->SetLastSync(options_.clock->Now());
  if (!connected_) {
    CADRE_LOG(INFO) << (ever_connected_ ? "connected again" : "joined")
                    << " as worker " << options_.worker_id
                    << ", coordinator generation " << response.generation();
  }
  connected_ = ever_connected_ = true;
  last_error_.clear();
  num_failures_ = 0;
  last_answer_ = options_.clock->Monotonic();
  generation_ = response.generation();
  cluster_uuid_ = response.cluster_uuid();
  idle_while_draining_acknowledged_ =
      request.draining() && request.has_idle() && response.has_idle();
  const bool had_reports = request.reports_size() > 0;
  Apply(response);
  // An end may have waited for these reports to be accepted.
  if (had_reports && reports_.empty() && session_ != nullptr &&
      session_->link.ended()) {
    Kick();
  }
  return true;
}

void Agent::HandleError(const absl::Status& status) {
  ++num_failures_;
  const std::string reason = ErrorReason(status);
  if (reason == "CLUSTER_MISMATCH" && session_ == nullptr) {
    // Nothing of the old cluster is held: join the new one.
    CADRE_LOG(WARNING) << "the coordinator belongs to another cluster than "
                       << cluster_uuid_ << "; joining it: " << status.message();
    cluster_uuid_.clear();
    generation_ = 0;
  }
  if (reason == "PROTOCOL_VERSION") {
    Leave(kExitConfig, absl::StrCat("the coordinator refuses this worker: ",
                                    status.message()));
  }
  // Once per change of what is wrong, not per call. Whether it is refused or
  // times out is the same to whoever reads the log.
  const std::string error =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)
          ? "unreachable"
          : reason;
  if (error != last_error_ || (connected_ && num_failures_ == 1)) {
    CADRE_LOG(WARNING) << "no good answer from the coordinator, retrying"
                       << (session_ != nullptr ? " while the job runs" : "")
                       << ": " << absl::StatusCodeToString(status.code())
                       << ": " << status.message();
  }
  last_error_ = error;
  connected_ = false;
  if (session_ != nullptr) session_->link.SetConnected(false);
}

void Agent::Apply(const SyncResponse& response) {
  if (response.has_next_sync()) next_sync_ = FromProto(response.next_sync());
  reports_.Accept(response.accepted_report_seq());
  if (session_ != nullptr) session_->link.SetConnected(true);
  switch (response.desired_case()) {
    case SyncResponse::kExit:
      Leave(kExitConfig,
            absl::StrCat("the coordinator told this process to leave: ",
                         response.exit().reason(),
                         "; two workers must not share the id ",
                         options_.worker_id));
      return;
    case SyncResponse::kStop:
      if (session_ == nullptr ||
          response.stop().attempt_epoch() != session_->link.attempt_epoch()) {
        break;
      }
      session_->link.RequestStop(response.stop().mode(),
                                 response.stop().reason());
      if (response.stop().mode() == STOP_MODE_NOW &&
          !session_->told_to_stop.has_value()) {
        session_->told_to_stop = options_.clock->Monotonic();
      }
      break;
    case SyncResponse::kRun:
      ApplyRun(response);
      break;
    case SyncResponse::kIdle:
      DropSession("the coordinator wants this worker idle");
      return;
    case SyncResponse::DESIRED_NOT_SET:
      break;
  }
  if (session_ == nullptr) return;
  if (response.seal_checkpoint() > 0) {
    session_->link.RequestSeal({.step = response.seal_checkpoint(),
                                .files = {response.seal_files().begin(),
                                          response.seal_files().end()}});
  }
  session_->link.RequestRemovals({response.remove_checkpoints().begin(),
                                  response.remove_checkpoints().end()});
}

void Agent::ApplyRun(const SyncResponse& response) {
  const DesiredRun& run = response.run();
  if (session_ != nullptr && session_->digest != run.assignment_digest()) {
    if (run.has_assignment() && run.assignment().job() == session_->job &&
        run.attempt_epoch() < session_->link.attempt_epoch()) {
      return;  // an attempt that this worker has already left behind
    }
    if (!DropSession("replaced by another assignment")) return;
  }
  if (session_ == nullptr) {
    if (!run.has_assignment()) return;  // it comes with the next answer
    StartSession(run);
  }
  if (response.has_rendezvous() &&
      response.rendezvous().attempt_epoch() == session_->link.attempt_epoch()) {
    session_->link.SetRendezvous(response.rendezvous());
  }
  if (response.has_placement()) {
    session_->link.RequestPlacement(response.placement());
  }
  session_->link.SetTarget(run.target());
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

void Agent::CheckDrain() {
  bool draining = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    draining = draining_;
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
    return Leave(0, "drained");
  }
  // Nobody will tell the session to save: do it without being told.
  if (session_ != nullptr && !connected_ &&
      now - last_answer_ > options_.timeouts.lease_ttl) {
    session_->link.RequestStop(STOP_MODE_CHECKPOINT,
                               "the worker drains without a coordinator");
    if (session_->returned) return Leave(0, "drained without a coordinator");
  }
  if (now - *drain_since_ > options_.timeouts.drain_deadline) {
    Leave(0,
          absl::StrCat("the job could not be saved within ",
                       absl::FormatDuration(options_.timeouts.drain_deadline)));
  }
}

}  // namespace cadre
