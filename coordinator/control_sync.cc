// Control's part that speaks with the workers.

#include <prometheus/counter.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/attempt_change.h"
#include "coordinator/control.h"

namespace cadre::coordinator {
namespace {

constexpr int kProtocolVersion = 1;
constexpr absl::Duration kFastSync = absl::Milliseconds(250);

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::ToInt64Seconds(duration));
  proto.set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(duration % absl::Seconds(1))));
  return proto;
}

// The rank that the caller's process has in the attempt; -1: none.
int RankOf(const state::v1::JobRecord& record, const v1::SyncRequest& request) {
  for (int rank = 0; rank < record.members_size(); ++rank) {
    if (record.members(rank).worker_id() == request.worker_id() &&
        record.members(rank).incarnation() == request.incarnation()) {
      return rank;
    }
  }
  return -1;
}

bool Holds(const state::v1::JobRecord& record, const v1::SyncRequest& request) {
  return request.job() == record.job().name() &&
         request.attempt_epoch() == record.job().attempt_epoch();
}

void SetStop(int64_t epoch, v1::StopMode mode, const std::string& reason,
             v1::SyncResponse* reply) {
  reply->mutable_stop()->set_attempt_epoch(epoch);
  reply->mutable_stop()->set_mode(mode);
  reply->mutable_stop()->set_reason(reason);
}

absl::Status CheckRequest(const v1::SyncRequest& request,
                          const std::string& cluster_uuid) {
  if (request.worker_id().empty() || request.incarnation().empty()) {
    return absl::InvalidArgumentError(
        "Sync: worker_id and incarnation must be set");
  }
  if (request.protocol_version() != kProtocolVersion) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "PROTOCOL_VERSION",
        absl::StrCat("worker ", request.worker_id(), " speaks protocol ",
                     request.protocol_version(), ", this coordinator speaks ",
                     kProtocolVersion, ": upgrade the older of the two"));
  }
  if (!request.cluster_uuid().empty() &&
      request.cluster_uuid() != cluster_uuid) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "CLUSTER_MISMATCH",
        absl::StrCat("worker ", request.worker_id(), " belongs to cluster ",
                     request.cluster_uuid(), ", this is ", cluster_uuid,
                     ": restart the worker to let it change over"));
  }
  return absl::OkStatus();
}

}  // namespace

void Control::Sync(const v1::SyncRequest& request,
                   Done<v1::SyncResponse> done) {
  const auto count = [this](const char* result) {
    options_.metrics->Counter(metric::kSyncRequests, {{"result", result}})
        .Increment();
  };
  absl::Status valid = CheckRequest(request, journal_->cluster_uuid());
  if (valid.ok() &&
      registry_.Judge(request) != WorkerRegistry::Admission::kLate) {
    valid = rendezvous_.Publish(request);
  }
  if (!valid.ok()) {
    count("error");
    return done(valid);
  }
  bool changed = false;
  const auto admission = registry_.Observe(request, options_.clock->Monotonic(),
                                           options_.clock->Now(), &changed);
  if (admission == WorkerRegistry::Admission::kRetired) {
    count("fenced");
    v1::SyncResponse reply;
    reply.set_generation(journal_->generation());
    reply.set_cluster_uuid(journal_->cluster_uuid());
    reply.mutable_exit()->set_reason(absl::StrCat(
        "another process speaks for worker ", request.worker_id()));
    return done(std::move(reply));
  }
  if (admission == WorkerRegistry::Admission::kLate) {
    // Its sender has given it up. Should the answer be read all the same, it
    // asks for nothing and accepts nothing.
    count("fenced");
    v1::SyncResponse reply;
    reply.set_generation(journal_->generation());
    reply.set_cluster_uuid(journal_->cluster_uuid());
    *reply.mutable_lease_ttl() = ToProto(options_.timeouts.lease_ttl);
    *reply.mutable_next_sync() = ToProto(kFastSync);
    return done(std::move(reply));
  }
  count("ok");
  const RecordPtr held = table_.HeldBy(request.worker_id());
  if (held != nullptr && request.running().has_progress() &&
      Holds(*held, request) && RankOf(*held, request) == 0) {
    v1::Progress progress = request.running().progress();
    if (progress.total_steps() == 0) {
      progress.set_total_steps(held->job().plan().total_steps());
    }
    if (progress.percent() == 0 && progress.total_steps() > 0) {
      progress.set_percent(100.0 * static_cast<double>(progress.step()) /
                           static_cast<double>(progress.total_steps()));
    }
    table_.SetProgress(JobId(held->job().name()), progress);
  }
  if (!changed && !HasDurableReports(request)) return Answer(request, done);
  journal_->Submit(
      {.decide = [this, request](
                     Store& store) { return HandleReports(store, request); },
       .done =
           [this, request, done](const absl::Status& status) {
             if (!status.ok()) return done(status);
             Answer(request, done);
           }});
}

void Control::Answer(const v1::SyncRequest& request,
                     const Done<v1::SyncResponse>& done) {
  // The answer accepts the values, so it waits until a killed coordinator would
  // still have them.
  if (!TakeValues(request)) return done(Reply(request));
  options_.series->AfterFlush([this, request, done] { done(Reply(request)); });
}

absl::Status Control::HandleReports(Store& store,
                                    const v1::SyncRequest& request) {
  const auto known = worker_rows_.find(request.worker_id());
  if (known == worker_rows_.end() ||
      known->second.last_incarnation != request.incarnation()) {
    WorkerRow row;
    if (known != worker_rows_.end()) row = known->second;
    row.id = request.worker_id();
    row.last_incarnation = request.incarnation();
    if (row.admin_state == v1::Worker::ADMIN_STATE_UNSPECIFIED) {
      row.admin_state = v1::Worker::ADMIN_STATE_SCHEDULABLE;
    }
    CADRE_RETURN_IF_ERROR(PutWorker(store, row));
  }
  const std::string id = JobId(request.job());
  const RecordPtr record = ledger_.Find(id);
  if (record != nullptr &&
      request.attempt_epoch() > record->job().attempt_epoch()) {
    // This journal is a restored backup: jump past what has happened since, so
    // that no epoch is used twice, and go on from the newest checkpoint known.
    JobChange change{.record = *record};
    const Verdict ahead{
        .trigger = Trigger::kAttemptFailed,
        .cause = v1::FAILURE_CAUSE_COORDINATOR,
        .detail = absl::StrCat("worker ", request.worker_id(),
                               " reports attempt ", request.attempt_epoch(),
                               ", which this journal does not know")};
    const v1::JobState state = record->job().state();
    if (state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING ||
        state == v1::JOB_STATE_FINALIZING) {
      CADRE_RETURN_IF_ERROR(
          FailAttempt(ledger_, options_.clock->Now(), ahead, 0, &change)
              .status());
    }
    change.job().set_attempt_epoch(request.attempt_epoch());
    change.AddEvent(v1::Event::SEVERITY_WARN, "WARNING", ahead.detail);
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  } else if (record != nullptr && IsActive(record->job().state())) {
    const int rank = RankOf(*record, request);
    if (rank >= 0 && request.reports_size() > 0) {
      JobChange change{.record = *record};
      for (const v1::Report& report : request.reports()) {
        const bool news =
            report.report_seq() >
                change.record.members(rank).accepted_report_seq() &&
            report.attempt_epoch() == record->job().attempt_epoch();
        ApplyReport(report, rank, options_.clock->Now(), &change);
        if (news && rank == 0 && report.has_experts_placed()) {
          CADRE_RETURN_IF_ERROR(
              TakeExpertsPlaced(store, report.experts_placed(), &change));
        }
      }
      if (change.record.members(rank).accepted_report_seq() !=
          record->members(rank).accepted_report_seq()) {
        CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
      }
    }
  }
  CADRE_RETURN_IF_ERROR(Evaluate(store, id));
  // A restarted worker no longer speaks of the job that it held.
  const RecordPtr held = table_.HeldBy(request.worker_id());
  if (held != nullptr && held->job().name() != request.job()) {
    return Evaluate(store, JobId(held->job().name()));
  }
  return absl::OkStatus();
}

void Control::FillRun(const state::v1::JobRecord& record, int rank,
                      const v1::SyncRequest& request,
                      v1::SyncResponse* reply) const {
  const GangView gang =
      MakeGangView(record, registry_, options_.clock->Monotonic(), started_);
  v1::DesiredRun* run = reply->mutable_run();
  run->set_attempt_epoch(record.job().attempt_epoch());
  run->set_assignment_digest(AssignmentDigest(record, rank));
  run->set_target(TargetOf(record, gang, rank));
  if (request.assignment_digest() != run->assignment_digest()) {
    *run->mutable_assignment() = MakeAssignment(record, rank);
    run->mutable_assignment()->mutable_allowed_roots()->Add(
        options_.allowed_roots.begin(), options_.allowed_roots.end());
  }
  FillPlacement(record, request, reply);
  if (record.job().state() == v1::JOB_STATE_STARTING) {
    *reply->mutable_rendezvous() =
        rendezvous_.Merged(record.job().name(), record.job().attempt_epoch());
  }
}

v1::SyncResponse Control::Reply(const v1::SyncRequest& request) const {
  v1::SyncResponse reply;
  reply.set_generation(journal_->generation());
  reply.set_cluster_uuid(journal_->cluster_uuid());
  *reply.mutable_lease_ttl() = ToProto(options_.timeouts.lease_ttl);
  absl::Duration next = options_.timeouts.sync_interval;
  for (const v1::Report& report : request.reports()) {
    // Unless the caller is a member, no report of state can matter.
    reply.set_accepted_report_seq(
        std::max(reply.accepted_report_seq(), report.report_seq()));
  }
  const bool empty_handed =
      request.has_idle() || request.has_ended() ||
      request.state_case() == v1::SyncRequest::STATE_NOT_SET;
  const RecordPtr record = table_.HeldBy(request.worker_id());
  const int rank = record == nullptr ? -1 : RankOf(*record, request);
  const bool holds = rank >= 0 && Holds(*record, request);
  if (rank >= 0) {
    // Values over steps are accepted as they come; a request that has nothing
    // else repeats nothing older, so all before them is committed.
    if (HasDurableReports(request)) {
      reply.set_accepted_report_seq(
          record->members(rank).accepted_report_seq());
    }
    if (record->job().state() != v1::JOB_STATE_RUNNING ||
        record->pending_saves_size() > 0) {
      next = std::min(next, kFastSync);
    }
  }
  *reply.mutable_next_sync() = ToProto(next);
  if (rank < 0 || (!holds && !request.has_idle())) {
    // Nothing, or something that is no longer this worker's.
    if (empty_handed) {
      reply.mutable_idle();
      return reply;
    }
    SetStop(request.attempt_epoch(), v1::STOP_MODE_NOW, "this attempt is over",
            &reply);
    return reply;
  }
  switch (record->job().state()) {
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_FINALIZING:
      FillRun(*record, rank, request, &reply);
      break;
    case v1::JOB_STATE_PAUSING:
      if (!holds || (request.has_ended() &&
                     (rank != 0 || SaveToSeal(*record) == nullptr))) {
        reply.mutable_idle();
      } else {
        SetStop(request.attempt_epoch(), v1::STOP_MODE_CHECKPOINT,
                StopIntent_Name(record->job().stop_intent()), &reply);
      }
      break;
    default:
      if (!holds || request.has_ended()) {
        reply.mutable_idle();
      } else {
        SetStop(request.attempt_epoch(), v1::STOP_MODE_NOW,
                absl::StrCat("the job is ", StateName(record->job().state())),
                &reply);
      }
      return reply;
  }
  if (rank == 0 && holds) {
    if (const auto* save = SaveToSeal(*record)) {
      reply.set_seal_checkpoint(save->step());
      *reply.mutable_seal_files() = save->files();
    }
    *reply.mutable_remove_checkpoints() = record->garbage();
  }
  return reply;
}

bool Control::TakeValues(const v1::SyncRequest& request) {
  const RecordPtr held = table_.HeldBy(request.worker_id());
  // Of the present attempt's rank 0 only: a rank that was cut off must not
  // draw over the curve of its successor.
  if (held == nullptr || !Holds(*held, request) ||
      RankOf(*held, request) != 0) {
    return false;
  }
  bool taken = false;
  const std::string id = JobId(held->job().name());
  for (const v1::Report& report : request.reports()) {
    if (report.attempt_epoch() != held->job().attempt_epoch()) continue;
    if (report.has_scalars()) {
      options_.series->Add(id, report.scalars(), options_.clock->Now());
      taken = true;
    } else if (report.has_expert_loads()) {
      options_.series->AddLoads(id, report.expert_loads());
      TakeWindow(held, report.expert_loads());
      taken = true;
    }
  }
  return taken;
}

}  // namespace cadre::coordinator
