// The agent's side of Sync: what it says and how it takes the answers.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "cadre/v1/worker_service.grpc.pb.h"
#include "worker/agent.h"
#include "worker/agent_session.h"

namespace cadre {

using cadre::v1::DesiredRun;
using cadre::v1::STOP_MODE_NOW;
using cadre::v1::SyncRequest;
using cadre::v1::SyncResponse;

namespace {

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

}  // namespace

SyncRequest Agent::MakeRequest() {
  SyncRequest request;
  request.set_worker_id(options_.worker_id);
  request.set_incarnation(options_.incarnation);
  request.set_cluster_uuid(cluster_uuid_);
  request.set_protocol_version(kSyncProtocolVersion);
  request.set_build(options_.build);
  *request.mutable_device() = options_.device;
  request.set_generation(generation_);
  request.set_sync_seq(++sync_seq_);
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
    Leave(kAgentExitConfig,
          absl::StrCat("the coordinator refuses this worker: ",
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
      Leave(kAgentExitConfig,
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

}  // namespace cadre
