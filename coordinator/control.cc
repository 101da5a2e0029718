#include "coordinator/control.h"

#include <prometheus/gauge.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/logging.h"
#include "base/metrics/names.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/attempt_change.h"

namespace cadre::coordinator {
namespace {

constexpr absl::Duration kProgressSaveInterval = absl::Seconds(30);
constexpr absl::Duration kFirstHouseKeeping = absl::Minutes(1);
// After so long a run without a failure the restart budgets are whole again.
constexpr absl::Duration kHealthyRun = absl::Hours(1);
// Two threads check job files, one counts data sets, below everything else.
constexpr int kRequestThreads = 2;
constexpr int kDataThreads = 1;
constexpr int kDataNice = 10;

// Why an attempt ended that was stopped in order; unset where its user asked.
v1::FailureCause CauseOf(v1::StopIntent intent) {
  switch (intent) {
    case v1::STOP_INTENT_DRAIN:
      return v1::FAILURE_CAUSE_DRAINED;
    case v1::STOP_INTENT_PREEMPT:
      return v1::FAILURE_CAUSE_PREEMPTED;
    case v1::STOP_INTENT_DEADLINE:
      return v1::FAILURE_CAUSE_DEADLINE;
    default:
      return v1::FAILURE_CAUSE_UNSPECIFIED;
  }
}

}  // namespace

Control::Control(const ControlOptions& options, Journal* journal)
    : options_(options),
      journal_(journal),
      started_(options.clock->Monotonic()),
      registry_(options.timeouts.lease_ttl),
      ledger_(&table_, options.clock, options.metrics),
      next_progress_save_(started_ + kProgressSaveInterval),
      next_house_keeping_(started_ + kFirstHouseKeeping),
      next_backup_(started_ + options.backup_every),
      request_pool_(std::make_unique<WorkPool>(kRequestThreads, 0)),
      data_pool_(std::make_unique<WorkPool>(kDataThreads, kDataNice)) {
  for (const char* result : {"applied", "skipped"}) {
    options_.metrics->Counter(metric::kMoeRebalances, {{"result", result}});
  }
}

Control::~Control() { Stop(); }

absl::StatusOr<std::unique_ptr<Control>> Control::Start(
    const ControlOptions& options, Journal* journal) {
  auto control = std::unique_ptr<Control>(new Control(options, journal));
  CADRE_RETURN_IF_ERROR(control->Load());
  Control* raw = control.get();
  journal->Start({.publish =
                      [raw] {
                        raw->ledger_.Publish();
                        raw->PublishWorkers();
                        raw->PublishExperts();
                        if (std::exchange(raw->folders_noted_, false)) {
                          raw->RemoveNotedFolders();
                        }
                      },
                  .rollback =
                      [raw] {
                        raw->ledger_.Rollback();
                        absl::MutexLock lock(&raw->workers_mutex_);
                        raw->worker_rows_ = raw->committed_workers_;
                        raw->workers_changed_ = false;
                        raw->experts_ = raw->committed_experts_;
                        raw->experts_changed_ = false;
                        raw->folders_noted_ = false;
                      }});
  control->RemoveNotedFolders();  // of a former process
  for (const RecordPtr& record : raw->table_.All()) {
    if (record->job().state() == v1::JOB_STATE_VALIDATING) {
      raw->CheckData(JobId(record->job().name()));
    }
  }
  return control;
}

absl::Status Control::Load() {
  CADRE_ASSIGN_OR_RETURN(auto jobs, journal_->store().LoadJobs());
  for (const state::v1::JobRecord& record : jobs) {
    warm_up_ = warm_up_ || IsActive(record.job().state());
  }
  ledger_.Load(std::move(jobs));
  CADRE_ASSIGN_OR_RETURN(const auto workers, journal_->store().LoadWorkers());
  for (const WorkerRow& row : workers) worker_rows_[row.id] = row;
  workers_changed_ = true;
  PublishWorkers();
  CADRE_ASSIGN_OR_RETURN(const auto experts, journal_->store().LoadExperts());
  for (const auto& [id, state] : experts) {
    experts_[id] =
        std::make_shared<const state::v1::ExpertPlacementState>(state);
  }
  experts_changed_ = true;
  PublishExperts();
  return absl::OkStatus();
}

void Control::Stop() {
  if (stopped_.exchange(true)) return;
  request_pool_->Stop();
  data_pool_->Stop();
  {
    absl::MutexLock lock(&readers_mutex_);
    readers_.clear();
  }
  journal_->Stop();
  options_.series->Stop();  // answers what waits for it
}

bool Control::WarmingUp() const {
  return warm_up_ &&
         options_.clock->Monotonic() - started_ < options_.timeouts.lease_ttl;
}

absl::Duration Control::InState(const state::v1::JobRecord& record) {
  const absl::Duration now = options_.clock->Monotonic();
  Since& since = since_[record.create_sequence()];
  if (since.state != record.job().state() ||
      since.epoch != record.job().attempt_epoch()) {
    since = {record.job().state(), record.job().attempt_epoch(), now};
  }
  return now - since.at;
}

Verdict Control::JudgeJob(const state::v1::JobRecord& record,
                          const GangView& gang) {
  Verdict verdict = Judge(record, gang, options_.timeouts);
  const v1::JobState state = record.job().state();
  if (state == v1::JOB_STATE_PAUSING && verdict.trigger == Trigger::kStopped &&
      SaveToSeal(record) != nullptr &&
      gang.in_state < options_.timeouts.checkpoint_timeout) {
    // The last save is on its way to becoming a checkpoint.
    verdict.trigger.reset();
  }
  if (verdict.trigger == Trigger::kAttemptFailed &&
      verdict.cause == v1::FAILURE_CAUSE_COORDINATOR && verdict.rank >= 0 &&
      (SaveToSeal(record) != nullptr || Reporting(gang)) &&
      gang.ranks[0].stalled < options_.timeouts.checkpoint_timeout) {
    // The workers saved and stopped while nobody led them; that save counts.
    verdict.trigger.reset();
    return verdict;
  }
  if (verdict.trigger == Trigger::kStepsDone &&
      (record.pending_saves_size() > 0 || Reporting(gang)) &&
      gang.ranks[0].stalled < options_.timeouts.checkpoint_timeout) {
    // So is the last one of a job that has done all its steps.
    verdict.trigger.reset();
    return verdict;
  }
  if (verdict.trigger.has_value() ||
      (state != v1::JOB_STATE_STARTING && state != v1::JOB_STATE_RUNNING)) {
    return verdict;
  }
  const std::string leave = MustLeave(record, gang);
  absl::Duration limit;
  const std::string& max_runtime = record.job().config_snapshot().max_runtime();
  if (!leave.empty()) {
    verdict.trigger = Trigger::kDrain;
    verdict.detail = leave;
  } else if (state == v1::JOB_STATE_RUNNING && !max_runtime.empty() &&
             absl::ParseDuration(max_runtime, &limit) &&
             absl::Seconds(record.past_running_seconds()) + gang.in_state >
                 limit) {
    verdict.trigger = Trigger::kDeadline;
    verdict.detail = absl::StrCat("max_runtime ", max_runtime, " is spent");
  }
  return verdict;
}

absl::Status Control::Act(const Verdict& verdict, const GangView& gang,
                          JobChange* change) {
  const absl::Time now = options_.clock->Now();
  const std::string id = change->id();
  v1::Job& job = change->job();
  *job.mutable_progress() = table_.View(change->record, false).progress();
  const int64_t step = std::max(HighestStep(gang), job.progress().step());
  switch (*verdict.trigger) {
    case Trigger::kAttemptFailed: {
      if (job.state() == v1::JOB_STATE_RUNNING &&
          gang.in_state >= kHealthyRun) {
        RestoreBudgets(change);
      }
      CADRE_ASSIGN_OR_RETURN(
          const absl::Duration backoff,
          FailAttempt(ledger_, now, verdict, HighestStep(gang), change));
      retry_at_[id] = options_.clock->Monotonic() + backoff;
      rendezvous_.Forget(job.name());
      return absl::OkStatus();
    }
    case Trigger::kAllRunning:
      job.clear_failure();
      change->AddEvent(
          v1::Event::SEVERITY_INFO, "RUNNING",
          absl::StrCat("all ", gang.ranks.size(), " ranks are training"));
      break;
    case Trigger::kResultCommitted:
      EndAttempt(now, v1::FAILURE_CAUSE_UNSPECIFIED, "done", step, change);
      job.mutable_progress()->set_percent(100);
      job.mutable_progress()->set_eta_seconds(0);
      break;
    case Trigger::kStopped:
      if (job.stop_intent() == v1::STOP_INTENT_DEADLINE) {
        v1::Failure* failure = job.mutable_failure();
        failure->set_cause(v1::FAILURE_CAUSE_DEADLINE);
        failure->set_user_error(true);
        *failure->mutable_status() = ToRpcStatus(Error(
            absl::StatusCode::kDeadlineExceeded, "DEADLINE",
            absl::StrCat("max_runtime ", job.config_snapshot().max_runtime(),
                         " is spent; raise it and go on from the last "
                         "checkpoint")));
      }
      change->record.set_requeued(job.stop_intent() == v1::STOP_INTENT_DRAIN ||
                                  job.stop_intent() == v1::STOP_INTENT_PREEMPT);
      EndAttempt(now, CauseOf(job.stop_intent()), "stopped", step, change);
      break;
    case Trigger::kNoReplacement:
      change->record.set_requeued(true);
      break;
    default:
      break;
  }
  return ledger_.Apply(*verdict.trigger, verdict.detail, change);
}

void Control::ShowProgress(const std::string& id,
                           const google::protobuf::Timestamp& start,
                           const v1::Progress& progress) {
  options_.metrics->Gauge(metric::kJobProgress, {{"job", id}})
      .Set(progress.percent() / 100);
  const int64_t left = progress.total_steps() - progress.step();
  const double elapsed =
      absl::ToDoubleSeconds(options_.clock->Now() - FromProto(start));
  if (!progress.estimate_ready() || left <= 0 || elapsed <= 0) return;
  const double step_seconds =
      progress.eta_seconds() / static_cast<double>(left);
  options_.metrics->Gauge(metric::kJobGoodput, {{"job", id}})
      .Set(std::min(
          1.0, static_cast<double>(progress.step()) * step_seconds / elapsed));
}

absl::Status Control::Evaluate(Store& store, const std::string& id) {
  // One change may make the next one due; a job never needs more in a row.
  for (int round = 0; round < 4; ++round) {
    const RecordPtr record = ledger_.Find(id);
    if (record == nullptr || !IsActive(record->job().state())) {
      if (record != nullptr) since_.erase(record->create_sequence());
      return absl::OkStatus();
    }
    GangView gang =
        MakeGangView(*record, registry_, options_.clock->Monotonic(), started_);
    gang.in_state = InState(*record);
    gang.warming_up = WarmingUp();
    const Verdict verdict = JudgeJob(*record, gang);
    if (!verdict.trigger.has_value()) {
      // Here and not where workers report it: the series of an ended job, gone
      // by then, must not come back.
      ShowProgress(id, record->job().start_time(),
                   table_.View(*record, false).progress());
      return absl::OkStatus();
    }
    JobChange change{.record = *record};
    CADRE_RETURN_IF_ERROR(Act(verdict, gang, &change));
    CADRE_RETURN_IF_ERROR(Blame(store, *record, verdict));
    CADRE_LOG(INFO) << record->job().name() << ": "
                    << StateName(record->job().state()) << " -> "
                    << StateName(change.job().state()) << " " << verdict.detail;
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  }
  return absl::OkStatus();
}

absl::Status Control::SaveProgress(Store& store) {
  if (options_.clock->Monotonic() < next_progress_save_) {
    return absl::OkStatus();
  }
  next_progress_save_ = options_.clock->Monotonic() + kProgressSaveInterval;
  const auto jobs = ledger_.live();  // Save changes the map
  for (const auto& [id, record] : jobs) {
    if (record->job().state() != v1::JOB_STATE_RUNNING) continue;
    const v1::Progress progress = table_.View(*record, false).progress();
    if (progress.step() == record->job().progress().step()) continue;
    JobChange change{.record = *record};
    *change.job().mutable_progress() = progress;
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  }
  return absl::OkStatus();
}

void Control::Tick() {
  journal_->LookAtDisk();
  BackUpIfDue();
  absl::Notification finished;
  journal_->Submit({.decide = [this](Store& store) -> absl::Status {
                      CADRE_RETURN_IF_ERROR(NoteExpiredLeases(store));
                      std::vector<std::string> active;
                      for (const auto& [id, record] : ledger_.live()) {
                        if (IsActive(record->job().state()))
                          active.push_back(id);
                      }
                      for (const std::string& id : active) {
                        CADRE_RETURN_IF_ERROR(Evaluate(store, id));
                      }
                      CADRE_RETURN_IF_ERROR(Place(store));
                      CADRE_RETURN_IF_ERROR(HouseKeep(store));
                      return SaveProgress(store);
                    },
                    .done =
                        [&finished](const absl::Status& status) {
                          if (!status.ok() && !absl::IsUnavailable(status)) {
                            CADRE_LOG(ERROR) << "tick: " << status.ToString();
                          }
                          finished.Notify();
                        }});
  finished.WaitForNotification();
}

}  // namespace cadre::coordinator
