#include "coordinator/ledger.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::coordinator {

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp proto;
  const int64_t seconds = absl::ToUnixSeconds(time);
  proto.set_seconds(seconds);
  proto.set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) +
         absl::Nanoseconds(time.nanos());
}

void JobChange::AddEvent(v1::Event::Severity severity, const std::string& type,
                         const std::string& message,
                         const std::map<std::string, std::string>& data) {
  v1::Event& event = events.emplace_back();
  event.set_severity(severity);
  event.set_type(type);
  event.set_message(message);
  event.set_attempt_epoch(record.job().attempt_epoch());
  for (const auto& [key, value] : data) (*event.mutable_data())[key] = value;
}

Ledger::Ledger(JobTable* table, Clock* clock, MetricsRegistry* metrics)
    : table_(table), clock_(clock), metrics_(metrics) {
  for (const char* result : {"ok", "replayed", "refused"}) {
    metrics_->Counter(metric::kJobsCreated, {{"result", result}});
  }
  metrics_->Histogram(metric::kJobQueueWait);
  metrics_->Histogram(metric::kJobRecovery);
  // From 0, so that the first of a kind is an increase.
  for (int cause = v1::FAILURE_CAUSE_USER;
       cause <= v1::FAILURE_CAUSE_COORDINATOR; ++cause) {
    const std::string name = CauseName(static_cast<v1::FailureCause>(cause));
    metrics_->Counter(metric::kJobRestarts, {{"cause", name}});
    metrics_->Counter(metric::kJobFailures, {{"cause", name}});
  }
  for (const char* verdict : {"lost", "unreachable"}) {
    metrics_->Counter(metric::kLeaseExpirations, {{"verdict", verdict}});
  }
}

void Ledger::Load(std::vector<state::v1::JobRecord> records) {
  std::vector<RecordPtr> loaded;
  for (state::v1::JobRecord& record : records) {
    last_sequence_ = std::max(last_sequence_, record.create_sequence());
    auto shared =
        std::make_shared<const state::v1::JobRecord>(std::move(record));
    Replace(JobId(shared->job().name()), nullptr, shared);
    ShowInfo(JobId(shared->job().name()), nullptr, shared->job());
    loaded.push_back(std::move(shared));
  }
  table_->Publish(loaded);
  ShowCounts();
}

RecordPtr Ledger::Find(const std::string& id) const {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : it->second;
}

int Ledger::Waiting(const std::string& owner) const {
  const auto it = waiting_.find(owner);
  return it == waiting_.end() ? 0 : it->second;
}

absl::Status Ledger::Apply(Trigger trigger, const std::string& message,
                           JobChange* change) {
  v1::Job& job = change->job();
  CADRE_ASSIGN_OR_RETURN(const Transition next,
                         Next({.state = job.state(),
                               .stop_intent = job.stop_intent(),
                               .validated = change->record.validated()},
                              trigger));
  if (!next.changes) return absl::OkStatus();
  const absl::Time now = clock_->Now();
  if (job.state() == v1::JOB_STATE_RUNNING) {
    change->record.set_past_running_seconds(
        change->record.past_running_seconds() +
        absl::ToDoubleSeconds(now - FromProto(change->record.state_time())));
  }
  const std::string from = StateName(job.state()), to = StateName(next.to);
  job.set_state(next.to);
  change->entered.push_back(next.to);
  job.set_stop_intent(next.stop_intent);
  *change->record.mutable_state_time() = ToProto(now);
  if (next.to == v1::JOB_STATE_QUEUED) {
    *job.mutable_queue_time() = ToProto(now);
  } else if (next.to != v1::JOB_STATE_RECOVERING) {
    job.clear_queue_reason();
  }
  if (next.to == v1::JOB_STATE_STARTING && !job.has_start_time()) {
    *job.mutable_start_time() = ToProto(now);
  }
  if (IsTerminal(next.to)) *job.mutable_end_time() = ToProto(now);
  if (!IsActive(next.to)) {
    change->record.clear_members();
    change->record.clear_pending_saves();
  }
  const bool bad = next.to == v1::JOB_STATE_FAILED;
  const bool odd = next.to == v1::JOB_STATE_RECOVERING;
  change->AddEvent(
      bad   ? v1::Event::SEVERITY_ERROR
      : odd ? v1::Event::SEVERITY_WARN
            : v1::Event::SEVERITY_INFO,
      "STATE_CHANGED",
      absl::StrCat(from, " -> ", to, message.empty() ? "" : ": ", message),
      {{"from", from}, {"to", to}});
  return absl::OkStatus();
}

absl::Status Ledger::Save(Store& store, JobChange change) {
  const std::string id = change.id();
  v1::Job& job = change.job();
  const absl::Time now = clock_->Now();
  *job.mutable_update_time() = ToProto(now);
  for (v1::Event& event : change.events) {
    *event.mutable_time() = ToProto(now);
    CADRE_ASSIGN_OR_RETURN(const int64_t sequence,
                           store.AppendEvent(id, event));
    job.set_last_sequence(sequence);
  }
  int64_t version = 0;
  const RecordPtr previous = Find(id);
  if (previous != nullptr) {
    (void)absl::SimpleAtoi(previous->job().etag(), &version);
  }
  job.set_etag(absl::StrCat(version + 1));
  CADRE_RETURN_IF_ERROR(store.PutJob(id, change.record));
  before_group_.emplace(id, previous);
  last_sequence_ = std::max(last_sequence_, change.record.create_sequence());
  const auto saved =
      std::make_shared<const state::v1::JobRecord>(std::move(change.record));
  v1::JobState from = v1::JOB_STATE_UNSPECIFIED;
  if (previous != nullptr) {
    from = previous->job().state();
  } else if (change.entered.empty()) {
    change.entered.push_back(saved->job().state());
  }
  for (const v1::JobState to : change.entered) {
    moves_.push_back({.from = from, .to = to, .record = saved});
    from = to;
  }
  Replace(id, previous, saved);
  return absl::OkStatus();
}

absl::Status Ledger::Bury(Store& store, const std::string& id) {
  CADRE_RETURN_IF_ERROR(store.BuryJob(id));
  const RecordPtr previous = Find(id);
  before_group_.emplace(id, previous);
  Replace(id, previous, nullptr);
  return absl::OkStatus();
}

void Ledger::Replace(const std::string& id, const RecordPtr& before,
                     const RecordPtr& after) {
  const auto add = [this](const RecordPtr& record, int count) {
    if (record == nullptr) return;
    const v1::Job& job = record->job();
    by_state_[job.state()] += count;
    if (job.state() == v1::JOB_STATE_QUEUED ||
        job.state() == v1::JOB_STATE_VALIDATING) {
      const auto waiting = waiting_.try_emplace(job.owner(), 0).first;
      waiting->second += count;
      if (waiting->second == 0) waiting_.erase(waiting);
    }
    if (job.has_queue_reason()) {
      by_reason_[job.queue_reason().code()] += count;
    }
  };
  add(before, -1);
  add(after, 1);
  if (after == nullptr) {
    jobs_.erase(id);
  } else {
    jobs_[id] = after;
  }
  if (after == nullptr || IsTerminal(after->job().state())) {
    live_.erase(id);
  } else {
    live_[id] = after;
  }
}

void Ledger::Count(const Move& move) {
  const v1::Job& job = move.record->job();
  const std::string cause = job.has_failure() ? CauseName(job.failure().cause())
                                              : std::string("NONE");
  metrics_
      ->Counter(metric::kJobTransitions,
                {{"to", StateName(move.to)}, {"cause", cause}})
      .Increment();
  if (move.to == v1::JOB_STATE_FAILED) {
    metrics_->Counter(metric::kJobFailures, {{"cause", cause}}).Increment();
  }
  // Not where the same change gives it up.
  if (move.to == v1::JOB_STATE_RECOVERING &&
      job.state() == v1::JOB_STATE_RECOVERING) {
    metrics_->Counter(metric::kJobRestarts, {{"cause", cause}}).Increment();
  }
  CountRecovery(JobId(job.name()), move.to);
  if (move.from == v1::JOB_STATE_QUEUED && move.to == v1::JOB_STATE_STARTING) {
    metrics_->Histogram(metric::kJobQueueWait)
        .Observe(
            absl::ToDoubleSeconds(clock_->Now() - FromProto(job.queue_time())));
  }
}

void Ledger::CountRecovery(const std::string& id, v1::JobState after) {
  if (after == v1::JOB_STATE_RECOVERING) {
    // Kept from the first failure where recovering fails again.
    recovering_.try_emplace(id, clock_->Monotonic());
  } else if (after == v1::JOB_STATE_RUNNING) {
    const auto it = recovering_.find(id);
    if (it == recovering_.end()) return;
    metrics_->Histogram(metric::kJobRecovery)
        .Observe(absl::ToDoubleSeconds(clock_->Monotonic() - it->second));
    recovering_.erase(it);
  } else if (IsTerminal(after) || after == v1::JOB_STATE_PAUSED) {
    recovering_.erase(id);
  }
}

void Ledger::ShowInfo(const std::string& id, const v1::Job* before,
                      const v1::Job& after) {
  if (before != nullptr && before->state() == after.state()) return;
  if (before != nullptr) {
    metrics_->RemoveGauge(metric::kJobInfo,
                          {{"job", id}, {"state", StateName(before->state())}});
  }
  if (IsTerminal(after.state())) return;
  metrics_
      ->Gauge(metric::kJobInfo,
              {{"job", id}, {"state", StateName(after.state())}})
      .Set(1);
}

void Ledger::ShowCounts() {
  for (int state = v1::JOB_STATE_VALIDATING; state <= v1::JOB_STATE_CANCELLED;
       ++state) {
    const auto value = static_cast<v1::JobState>(state);
    metrics_->Gauge(metric::kJobs, {{"state", StateName(value)}})
        .Set(by_state_[value]);
  }
  for (const char* reason :
       {"WAITING_FOR_WORKERS", "NO_ELIGIBLE_WORKERS", "BEHIND_HIGHER_PRIORITY",
        "HELD_FOR_LARGER_JOB", "WAITING_FOR_REPLACEMENT", "RETRY_BACKOFF",
        "COORDINATOR_WARMING_UP", "STATE_DISK_FULL", "QUOTA_RUNNING_JOBS",
        "QUOTA_RUNNING_WORKERS"}) {
    metrics_->Gauge(metric::kQueueJobs, {{"reason", reason}})
        .Set(by_reason_[reason]);
  }
}

void Ledger::Publish() {
  if (before_group_.empty()) return;
  std::vector<RecordPtr> changed;
  std::vector<std::string> gone;
  for (const auto& [id, before] : before_group_) {
    const RecordPtr after = Find(id);
    if (after == nullptr) {
      gone.push_back(id);
      continue;
    }
    changed.push_back(after);
    ShowInfo(id, before == nullptr ? nullptr : &before->job(), after->job());
    if (IsTerminal(after->job().state())) {
      metrics_->RemoveGauge(metric::kJobProgress, {{"job", id}});
      metrics_->RemoveGauge(metric::kJobGoodput, {{"job", id}});
    }
  }
  // One by one: a group may take a job through several states.
  for (const Move& move : moves_) Count(move);
  moves_.clear();
  before_group_.clear();
  ShowCounts();
  table_->Publish(changed, gone);
}

void Ledger::Rollback() {
  for (const auto& [id, before] : before_group_) {
    Replace(id, Find(id), before);
  }
  moves_.clear();
  before_group_.clear();
}

}  // namespace cadre::coordinator
