#include "coordinator/worker_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre::coordinator {
namespace {

int64_t CollectiveSeq(const v1::SyncRequest& request) {
  return request.has_running() ? request.running().collective_seq() : 0;
}

bool Differs(const v1::SyncRequest& a, const v1::SyncRequest& b) {
  return a.state_case() != b.state_case() ||
         a.attempt_epoch() != b.attempt_epoch() || a.job() != b.job() ||
         a.draining() != b.draining() ||
         a.running().steps_done() != b.running().steps_done() ||
         a.preparing().published_size() != b.preparing().published_size() ||
         a.ended().result() != b.ended().result();
}

}  // namespace

WorkerRegistry::Admission WorkerRegistry::Observe(
    const v1::SyncRequest& request, absl::Duration now, absl::Time wall,
    bool* changed) {
  absl::MutexLock lock(&mutex_);
  const Admission admission = JudgeLocked(request);
  if (admission == Admission::kRetired || admission == Admission::kLate) {
    return admission;
  }
  WorkerView& view = workers_[request.worker_id()];
  const bool fresh = admission == Admission::kNew;
  if (fresh) {
    if (!view.incarnation.empty()) {
      retired_.insert(absl::StrCat(view.id, " ", view.incarnation));
    }
    view = WorkerView{.id = request.worker_id(),
                      .incarnation = request.incarnation(),
                      .last_progress = now};
  }
  *changed = fresh || Differs(view.last, request);
  if (view.last.running().step() != request.running().step() ||
      CollectiveSeq(view.last) != CollectiveSeq(request) ||
      view.last.running().phase() != request.running().phase() ||
      view.last.state_case() != request.state_case()) {
    if (view.last.attempt_epoch() != request.attempt_epoch()) {
      view.longest_gap = absl::ZeroDuration();
    } else if (view.last.running().phase() == "train") {
      view.longest_gap = std::max(view.longest_gap, now - view.last_progress);
    }
    view.last_progress = now;
  }
  if (request.attempt_epoch() > 0) {
    view.taken_epoch = request.attempt_epoch();
    view.taken_job = request.job();
  }
  view.last = request;
  view.last.clear_reports();
  view.reporting = HasDurableReports(request);
  view.last_sync = now;
  view.last_sync_time = wall;
  view.unreachable_counted = false;
  return admission;
}

WorkerRegistry::Admission WorkerRegistry::Judge(
    const v1::SyncRequest& request) const {
  absl::MutexLock lock(&mutex_);
  return JudgeLocked(request);
}

WorkerRegistry::Admission WorkerRegistry::JudgeLocked(
    const v1::SyncRequest& request) const {
  if (retired_.contains(
          absl::StrCat(request.worker_id(), " ", request.incarnation()))) {
    return Admission::kRetired;
  }
  const auto it = workers_.find(request.worker_id());
  if (it == workers_.end() || it->second.incarnation != request.incarnation()) {
    return Admission::kNew;
  }
  const int64_t newest = it->second.last.sync_seq();
  return request.sync_seq() != 0 && request.sync_seq() < newest
             ? Admission::kLate
             : Admission::kKnown;
}

std::vector<std::string> WorkerRegistry::TakeExpired(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> expired;
  for (auto& [id, view] : workers_) {
    if (!view.unreachable_counted && now - view.last_sync >= lease_ttl_) {
      view.unreachable_counted = true;
      expired.push_back(id);
    }
  }
  return expired;
}

WorkerView WorkerRegistry::Snapshot(const WorkerView& view,
                                    absl::Duration now) const {
  WorkerView copy = view;
  copy.lease_live = now - view.last_sync < lease_ttl_;
  return copy;
}

std::optional<WorkerView> WorkerRegistry::Find(const std::string& id,
                                               absl::Duration now) const {
  absl::MutexLock lock(&mutex_);
  const auto it = workers_.find(id);
  if (it == workers_.end()) return std::nullopt;
  return Snapshot(it->second, now);
}

std::vector<WorkerView> WorkerRegistry::All(absl::Duration now) const {
  absl::MutexLock lock(&mutex_);
  std::vector<WorkerView> all;
  for (const auto& [id, view] : workers_) all.push_back(Snapshot(view, now));
  return all;
}

void WorkerRegistry::ForEach(
    absl::Duration now,
    absl::FunctionRef<void(const WorkerView&, bool)> look) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, view] : workers_) {
    look(view, now - view.last_sync < lease_ttl_);
  }
}

bool WorkerRegistry::AllSilent(absl::Duration now) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, view] : workers_) {
    if (now - view.last_sync < lease_ttl_) return false;
  }
  return workers_.size() > 1;
}

bool HasDurableReports(const v1::SyncRequest& request) {
  return std::any_of(request.reports().begin(), request.reports().end(),
                     [](const v1::Report& report) {
                       return !report.has_scalars() &&
                              !report.has_expert_loads();
                     });
}

v1::Worker::State ReportedState(const v1::SyncRequest& request) {
  switch (request.state_case()) {
    case v1::SyncRequest::kPreparing:
      return v1::Worker::STATE_PREPARING;
    case v1::SyncRequest::kReady:
      return v1::Worker::STATE_READY;
    case v1::SyncRequest::kRunning:
      return v1::Worker::STATE_RUNNING;
    case v1::SyncRequest::kStopping:
      return v1::Worker::STATE_STOPPING;
    case v1::SyncRequest::kEnded:
      return v1::Worker::STATE_ENDED;
    default:
      return v1::Worker::STATE_IDLE;
  }
}

}  // namespace cadre::coordinator
