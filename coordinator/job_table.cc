#include "coordinator/job_table.h"

#include "absl/strings/match.h"
#include "coordinator/job.h"

namespace cadre::coordinator {

namespace {

// All but what only the FULL view shows: that is most of a job, and a page of a
// thousand must not copy it first.
void CopyBasic(const v1::Job& from, v1::Job* to) {
  to->set_name(from.name());
  to->set_uid(from.uid());
  to->set_owner(from.owner());
  *to->mutable_labels() = from.labels();
  to->set_priority(from.priority());
  to->set_state(from.state());
  to->set_stop_intent(from.stop_intent());
  if (from.has_queue_reason())
    *to->mutable_queue_reason() = from.queue_reason();
  if (from.has_spec()) *to->mutable_spec() = from.spec();
  if (from.has_plan()) *to->mutable_plan() = from.plan();
  to->set_attempt_epoch(from.attempt_epoch());
  if (from.has_progress()) *to->mutable_progress() = from.progress();
  if (from.has_failure()) *to->mutable_failure() = from.failure();
  if (from.has_token_stats()) *to->mutable_token_stats() = from.token_stats();
  if (from.has_latest_checkpoint()) {
    *to->mutable_latest_checkpoint() = from.latest_checkpoint();
  }
  *to->mutable_artifacts() = from.artifacts();
  if (from.has_create_time()) *to->mutable_create_time() = from.create_time();
  if (from.has_queue_time()) *to->mutable_queue_time() = from.queue_time();
  if (from.has_start_time()) *to->mutable_start_time() = from.start_time();
  if (from.has_end_time()) *to->mutable_end_time() = from.end_time();
  if (from.has_update_time()) *to->mutable_update_time() = from.update_time();
  to->set_last_sequence(from.last_sequence());
  to->set_etag(from.etag());
}

}  // namespace

std::string JobId(const std::string& name) {
  return absl::StartsWith(name, "jobs/") ? name.substr(5) : "";
}

RecordPtr JobTable::Find(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : it->second;
}

std::vector<RecordPtr> JobTable::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<RecordPtr> all;
  all.reserve(jobs_.size());
  for (const auto& [sequence, record] : order_) all.push_back(record);
  return all;
}

void JobTable::Visit(
    int64_t below, const std::function<bool(const RecordPtr&)>& visitor) const {
  absl::MutexLock lock(&mutex_);
  for (auto it = order_.upper_bound(below); it != order_.end(); ++it) {
    if (!visitor(it->second)) return;
  }
}

RecordPtr JobTable::HeldBy(const std::string& worker_id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = holder_.find(worker_id);
  return it == holder_.end() ? nullptr : jobs_.at(it->second);
}

void JobTable::Publish(const std::vector<RecordPtr>& records,
                       const std::vector<std::string>& gone) {
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : gone) {
      // Only ended jobs are deleted: they hold no worker.
      const auto it = jobs_.find(id);
      if (it == jobs_.end()) continue;
      order_.erase(it->second->create_sequence());
      jobs_.erase(it);
    }
    for (const RecordPtr& record : records) {
      const std::string id = JobId(record->job().name());
      RecordPtr& slot = jobs_[id];
      if (slot != nullptr) {
        for (const auto& member : slot->members()) {
          const auto it = holder_.find(member.worker_id());
          if (it != holder_.end() && it->second == id) holder_.erase(it);
        }
      }
      slot = record;
      order_[record->create_sequence()] = record;
      if (IsActive(record->job().state())) {
        for (const auto& member : record->members()) {
          holder_[member.worker_id()] = id;
        }
      } else {
        progress_.erase(id);
      }
    }
  }
  if (listener_ && (!records.empty() || !gone.empty())) listener_();
}

void JobTable::SetProgress(const std::string& id,
                           const v1::Progress& progress) {
  {
    absl::MutexLock lock(&mutex_);
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || !IsActive(it->second->job().state())) return;
    progress_[id] = progress;
  }
  if (listener_) listener_();
}

v1::Job JobTable::View(const state::v1::JobRecord& record, bool full) const {
  v1::Job job;
  if (full) {
    job = record.job();
  } else {
    CopyBasic(record.job(), &job);
  }
  if (!IsActive(job.state())) return job;
  absl::MutexLock lock(&mutex_);
  const auto it = progress_.find(JobId(job.name()));
  if (it != progress_.end()) *job.mutable_progress() = it->second;
  return job;
}

}  // namespace cadre::coordinator
