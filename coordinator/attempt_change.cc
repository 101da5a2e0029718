#include "coordinator/attempt_change.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/memory_peaks.h"

namespace cadre::coordinator {
namespace {

using state::v1::JobRecord;
using state::v1::PendingSave;

absl::StatusCode CodeOf(v1::FailureCause cause) {
  switch (cause) {
    case v1::FAILURE_CAUSE_USER:
    case v1::FAILURE_CAUSE_NUMERIC:
      return absl::StatusCode::kInvalidArgument;
    case v1::FAILURE_CAUSE_DEADLINE:
      return absl::StatusCode::kDeadlineExceeded;
    case v1::FAILURE_CAUSE_OUT_OF_MEMORY:
    case v1::FAILURE_CAUSE_STORAGE:
      return absl::StatusCode::kResourceExhausted;
    case v1::FAILURE_CAUSE_INTERNAL:
      return absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

void Remember(const std::string& folder, JobRecord* record) {
  if (folder.empty()) return;
  // Folders that rank 0 has removed meanwhile need no further request.
  auto* garbage = record->mutable_garbage();
  garbage->erase(
      std::remove_if(garbage->begin(), garbage->end(),
                     [](const std::string& path) {
                       std::error_code error;
                       return !std::filesystem::exists(path, error) && !error;
                     }),
      garbage->end());
  *garbage->Add() = folder;
}

void TakeFilesSaved(const v1::FilesSaved& saved, int rank, JobChange* change) {
  JobRecord& record = change->record;
  if (saved.step() <= record.job().latest_checkpoint().step()) return;
  PendingSave* pending = nullptr;
  for (PendingSave& candidate : *record.mutable_pending_saves()) {
    if (candidate.step() == saved.step()) pending = &candidate;
  }
  if (pending == nullptr) {
    pending = record.add_pending_saves();
    pending->set_step(saved.step());
    pending->set_attempt_epoch(record.job().attempt_epoch());
  }
  if (std::find(pending->ranks().begin(), pending->ranks().end(), rank) !=
      pending->ranks().end()) {
    return;
  }
  pending->add_ranks(rank);
  for (const auto& file : saved.files()) *pending->add_files() = file;
  if (rank == 0 || pending->storage_path().empty()) {
    pending->set_storage_path(saved.storage_path());
    pending->set_loss(saved.loss());
  }
}

// Keeps the newest keep_last and every keep_every_steps-th.
void ApplyRetention(JobRecord* record) {
  const v1::CheckpointSpec& spec = record->job().config_snapshot().checkpoint();
  const int keep_last = std::max(1, spec.keep_last());
  const int64_t every = spec.keep_every_steps();
  auto* checkpoints = record->mutable_checkpoints();
  for (int i = checkpoints->size() - keep_last - 1; i >= 0; --i) {
    const v1::Checkpoint& old = (*checkpoints)[i];
    if (every > 0 && old.step() % every == 0) continue;
    Remember(old.storage_path(), record);
    checkpoints->DeleteSubrange(i, 1);
  }
}

void TakeSealed(const v1::CheckpointSealed& sealed, absl::Time now,
                JobChange* change) {
  JobRecord& record = change->record;
  if (sealed.step() <= record.job().latest_checkpoint().step()) return;
  v1::Checkpoint checkpoint;
  checkpoint.set_name(
      absl::StrCat(record.job().name(), "/checkpoints/", sealed.step()));
  checkpoint.set_step(sealed.step());
  checkpoint.set_attempt_epoch(record.job().attempt_epoch());
  checkpoint.set_bytes(sealed.bytes());
  *checkpoint.mutable_create_time() = ToProto(now);
  checkpoint.set_manifest_sha256(sealed.manifest_sha256());
  checkpoint.set_storage_path(sealed.storage_path());
  auto* pending = record.mutable_pending_saves();
  for (int i = pending->size() - 1; i >= 0; --i) {
    if ((*pending)[i].step() > sealed.step()) continue;
    if ((*pending)[i].step() == sealed.step()) {
      checkpoint.set_loss((*pending)[i].loss());
    } else {
      Remember((*pending)[i].storage_path(), &record);
    }
    pending->DeleteSubrange(i, 1);
  }
  *record.mutable_job()->mutable_latest_checkpoint() = checkpoint;
  *record.add_checkpoints() = checkpoint;
  ApplyRetention(&record);
  change->AddEvent(
      v1::Event::SEVERITY_INFO, "CHECKPOINT_COMMITTED",
      absl::StrCat("checkpoint of step ", sealed.step(), ", ", sealed.bytes(),
                   " bytes"),
      {{"step", absl::StrCat(sealed.step())}, {"path", sealed.storage_path()}});
}

// Neither that save nor an older one will be sealed any more.
void TakeFailed(const v1::CheckpointFailed& failed, JobChange* change) {
  auto* pending = change->record.mutable_pending_saves();
  for (int i = pending->size() - 1; i >= 0; --i) {
    if ((*pending)[i].step() > failed.step()) continue;
    Remember((*pending)[i].storage_path(), &change->record);
    pending->DeleteSubrange(i, 1);
  }
  change->AddEvent(v1::Event::SEVERITY_WARN, "CHECKPOINT_FAILED",
                   failed.reason(), {{"step", absl::StrCat(failed.step())}});
}

void TakeArtifact(const v1::ArtifactWritten& written, JobChange* change) {
  const std::string name =
      absl::StrCat(change->job().name(), "/artifacts/", written.kind());
  v1::Artifact* artifact = nullptr;
  for (v1::Artifact& present : *change->job().mutable_artifacts()) {
    if (present.name() == name) artifact = &present;
  }
  if (artifact == nullptr) artifact = change->job().add_artifacts();
  artifact->set_name(name);
  artifact->set_storage_path(written.storage_path());
  artifact->set_bytes(written.bytes());
  artifact->set_manifest_sha256(written.manifest_sha256());
}

}  // namespace

namespace {

// Takes the plan for so many workers; the job's results are the same but for
// rounding.
void TakePlan(int workers, JobChange* change) {
  v1::Job& job = change->job();
  if (job.plan().world_size() == workers) return;
  for (const v1::Plan& plan : change->record.plans()) {
    if (plan.world_size() != workers) continue;
    change->AddEvent(
        v1::Event::SEVERITY_INFO, "PLANNED",
        absl::StrCat("planned for ", workers, " workers instead of ",
                     job.plan().world_size(), ": ", plan.dense_replicas(),
                     " x ", plan.fsdp_shard_group_size(), " dense, ",
                     plan.expert_data_parallel_size(), " x ",
                     plan.expert_parallel_size(), " experts, ",
                     plan.accumulation_steps(), " passes of ",
                     plan.micro_batch_size(), " rows"),
        {{"world_size", absl::StrCat(workers)}});
    *job.mutable_plan() = plan;
    return;
  }
}

}  // namespace

absl::Status StartAttempt(Ledger& ledger, absl::Time now,
                          const std::vector<state::v1::Member>& members,
                          JobChange* change) {
  JobRecord& record = change->record;
  v1::Job& job = change->job();
  job.set_attempt_epoch(job.attempt_epoch() + 1);
  record.clear_members();
  record.clear_pending_saves();
  record.set_requeued(false);
  const v1::Checkpoint& from = job.latest_checkpoint();
  if (job.has_latest_checkpoint()) {
    record.set_resume_path(from.storage_path());
    record.set_resume_manifest_sha256(from.manifest_sha256());
    record.set_resume_step(from.step());
  }
  TakePlan(static_cast<int>(members.size()), change);
  if (job.attempts_size() > 0) KeepWorstPeak(job.attempts_size() - 1, &job);
  v1::Attempt* attempt = job.add_attempts();
  attempt->set_epoch(job.attempt_epoch());
  *attempt->mutable_start_time() = ToProto(now);
  attempt->set_from_step(record.resume_step());
  for (const auto& member : members) {
    *record.add_members() = member;
    attempt->add_workers(member.worker_id());
  }
  change->AddEvent(
      v1::Event::SEVERITY_INFO, "ATTEMPT_STARTED",
      absl::StrCat("attempt ", job.attempt_epoch(), " on ", members.size(),
                   members.size() == 1 ? " worker" : " workers", " from step ",
                   record.resume_step()),
      {{"from_step", absl::StrCat(record.resume_step())}});
  return ledger.Apply(Trigger::kGangPlaced, "", change);
}

void RestoreBudgets(JobChange* change) {
  v1::Job& job = change->job();
  change->record.clear_restarts_used();
  auto& left = *job.mutable_restarts_left();
  for (const auto& [key, budget] : DefaultRestarts()) left[key] = budget;
  for (const auto& [key, budget] : job.spec().restarts()) left[key] = budget;
}

void EndAttempt(absl::Time now, v1::FailureCause cause,
                const std::string& detail, int64_t step, JobChange* change) {
  v1::Job& job = change->job();
  if (job.attempts_size() == 0) return;
  v1::Attempt* attempt = job.mutable_attempts(job.attempts_size() - 1);
  if (attempt->has_end_time()) return;
  *attempt->mutable_end_time() = ToProto(now);
  attempt->set_cause(cause);
  attempt->set_to_step(step);
  attempt->set_detail(detail);
  TellMemory(*attempt, change);
}

absl::StatusOr<absl::Duration> FailAttempt(Ledger& ledger, absl::Time now,
                                           const Verdict& verdict,
                                           int64_t highest_step,
                                           JobChange* change) {
  JobRecord& record = change->record;
  v1::Job& job = change->job();
  EndAttempt(now, verdict.cause, verdict.detail, highest_step, change);

  const bool progress = highest_step > record.best_step() ||
                        job.latest_checkpoint().step() > record.resume_step();
  record.set_attempts_without_progress(
      progress ? 0 : record.attempts_without_progress() + 1);
  record.set_best_step(std::max(record.best_step(), highest_step));
  for (const auto& pending : record.pending_saves()) {
    Remember(pending.storage_path(), &record);
  }
  record.clear_pending_saves();

  v1::Failure* failure = job.mutable_failure();
  failure->Clear();
  failure->set_cause(verdict.cause);
  failure->set_user_error(IsUserError(verdict.cause));
  failure->set_evidence(verdict.evidence);
  if (verdict.status.code() != 0) {
    *failure->mutable_status() = verdict.status;
  } else {
    *failure->mutable_status() = ToRpcStatus(
        Error(CodeOf(verdict.cause), CauseName(verdict.cause), verdict.detail));
  }
  std::map<std::string, std::string> data = {
      {"cause", CauseName(verdict.cause)},
      {"step", absl::StrCat(highest_step)}};
  if (verdict.rank >= 0) data["rank"] = absl::StrCat(verdict.rank);
  change->AddEvent(v1::Event::SEVERITY_ERROR, "ATTEMPT_ENDED", verdict.detail,
                   data);

  const std::string key = BudgetKey(verdict.cause);
  RestartQuestion question{
      .cause = verdict.cause,
      .used = key.empty() ? 0 : (*record.mutable_restarts_used())[key],
      .attempts_without_progress = record.attempts_without_progress()};
  for (const auto& [name, left] : job.restarts_left()) {
    question.left[name] = left;
  }
  const RestartAnswer answer = DecideRestart(question);
  CADRE_RETURN_IF_ERROR(
      ledger.Apply(Trigger::kAttemptFailed, CauseName(verdict.cause), change));
  if (!answer.restart) {
    CADRE_RETURN_IF_ERROR(
        ledger.Apply(Trigger::kGiveUp, answer.why_not, change));
    return absl::ZeroDuration();
  }
  if (!answer.spend.empty()) {
    --(*job.mutable_restarts_left())[answer.spend];
    ++(*record.mutable_restarts_used())[answer.spend];
  }
  return answer.backoff;
}

void ApplyReport(const v1::Report& report, int rank, absl::Time now,
                 JobChange* change) {
  state::v1::Member* member = change->record.mutable_members(rank);
  if (report.report_seq() <= member->accepted_report_seq()) return;
  member->set_accepted_report_seq(report.report_seq());
  if (report.attempt_epoch() != change->job().attempt_epoch()) return;
  switch (report.item_case()) {
    case v1::Report::kFilesSaved:
      TakeFilesSaved(report.files_saved(), rank, change);
      break;
    case v1::Report::kCheckpointSealed:
      if (rank == 0) TakeSealed(report.checkpoint_sealed(), now, change);
      break;
    case v1::Report::kCheckpointFailed:
      if (rank == 0) TakeFailed(report.checkpoint_failed(), change);
      break;
    case v1::Report::kEvent:
      change->AddEvent(
          report.event().severity(), report.event().type(),
          report.event().message(),
          {report.event().data().begin(), report.event().data().end()});
      break;
    case v1::Report::kMemoryPeak:
      TakeMemoryPeak(report.memory_peak(), rank, &change->job());
      break;
    case v1::Report::kArtifact:
      if (rank == 0) TakeArtifact(report.artifact(), change);
      break;
    default:
      // Values over steps are no state: Control keeps them in the series.
      break;
  }
}

const PendingSave* SaveToSeal(const JobRecord& record) {
  const PendingSave* newest = nullptr;
  for (const PendingSave& pending : record.pending_saves()) {
    if (pending.ranks_size() == record.members_size() &&
        (newest == nullptr || pending.step() > newest->step())) {
      newest = &pending;
    }
  }
  return newest;
}

v1::Assignment MakeAssignment(const JobRecord& record, int rank) {
  const v1::Job& job = record.job();
  v1::Assignment assignment;
  assignment.set_job(job.name());
  assignment.set_attempt_epoch(job.attempt_epoch());
  assignment.set_rank(rank);
  *assignment.mutable_spec() = job.config_snapshot();
  *assignment.mutable_plan() = job.plan();
  assignment.set_checkpoint_dir(record.checkpoint_dir());
  assignment.set_output_dir(record.output_dir());
  assignment.set_resume_path(record.resume_path());
  assignment.set_resume_manifest_sha256(record.resume_manifest_sha256());
  assignment.set_resume_step(record.resume_step());
  assignment.set_total_steps(job.plan().total_steps());
  for (const auto& member : record.members()) {
    assignment.add_workers(member.worker_id());
    assignment.add_link_domains(member.link_domain());
  }
  for (const auto& pinned : record.data_files()) {
    v1::SavedFile* file = assignment.add_data_files();
    file->set_path(pinned.path());
    file->set_bytes(pinned.bytes());
    file->set_sha256(pinned.sha256());
  }
  return assignment;
}

std::string AssignmentDigest(const JobRecord& record, int rank) {
  return absl::StrCat(record.job().uid(), "/", record.job().attempt_epoch(),
                      "/", rank);
}

}  // namespace cadre::coordinator
