#include "coordinator/job_table.h"

#include "absl/strings/match.h"
#include "coordinator/job.h"

namespace cadre::coordinator {

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
  for (const auto& [sequence, id] : order_) all.push_back(jobs_.at(id));
  return all;
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
      order_[record->create_sequence()] = id;
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
  v1::Job job = record.job();
  {
    absl::MutexLock lock(&mutex_);
    const auto it = progress_.find(JobId(job.name()));
    if (it != progress_.end() && IsActive(job.state())) {
      *job.mutable_progress() = it->second;
    }
  }
  if (!full) {
    job.clear_config_snapshot();
    job.clear_attempts();
    job.clear_restarts_left();
  }
  return job;
}

}  // namespace cadre::coordinator
