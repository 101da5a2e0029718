#ifndef CADRE_COORDINATOR_WORKER_REGISTRY_H_
#define CADRE_COORDINATOR_WORKER_REGISTRY_H_

// What the workers said last: leases, incarnations, reported states. Lives in
// memory only; after a restart it fills with the first Sync of each worker.
// Time is the monotonic clock's. Thread-safe.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cadre/v1/admin_service.pb.h"
#include "cadre/v1/worker_service.pb.h"

namespace cadre::coordinator {

struct WorkerView {
  std::string id;
  std::string incarnation;
  v1::SyncRequest last;    // without its reports
  bool reporting = false;  // of state; it may not be committed yet
  absl::Duration last_sync;
  absl::Time last_sync_time;
  // When step or collective_seq last grew.
  absl::Duration last_progress;
  // The longest time between two advances while running this epoch.
  absl::Duration longest_gap;
  // Newest epoch this process has taken up.
  int64_t taken_epoch = 0;
  std::string taken_job;
  bool lease_live = false;  // at the time of the snapshot
  bool unreachable_counted = false;
};

class WorkerRegistry {
 public:
  explicit WorkerRegistry(absl::Duration lease_ttl) : lease_ttl_(lease_ttl) {}

  enum class Admission {
    kKnown,    // the process that spoke before
    kNew,      // a worker or process not seen before
    kRetired,  // a newer process speaks for this worker_id
    kLate,     // a newer call of the same process was here before
  };
  // Takes a Sync in. `changed` is set when a state, an epoch or a phase is not
  // what it was: something may have to be decided.
  Admission Observe(const v1::SyncRequest& request, absl::Duration now,
                    absl::Time wall, bool* changed);

  // What Observe would answer now; takes nothing in.
  Admission Judge(const v1::SyncRequest& request) const;

  // Workers that ran out of their lease since the last call.
  std::vector<std::string> TakeExpired(absl::Duration now);

  std::optional<WorkerView> Find(const std::string& id,
                                 absl::Duration now) const;
  // By id.
  std::vector<WorkerView> All(absl::Duration now) const;
  // The same without copies: calls `look` with each view and whether its lease
  // is live, while every Sync waits. The view's own lease_live is not set.
  void ForEach(absl::Duration now,
               absl::FunctionRef<void(const WorkerView&, bool)> look) const;

  // True when there are several workers and none has a live lease: then the
  // coordinator itself is the likelier culprit.
  bool AllSilent(absl::Duration now) const;

 private:
  Admission JudgeLocked(const v1::SyncRequest& request) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  WorkerView Snapshot(const WorkerView& view, absl::Duration now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const absl::Duration lease_ttl_;
  mutable absl::Mutex mutex_;
  std::map<std::string, WorkerView> workers_ ABSL_GUARDED_BY(mutex_);
  // "worker_id incarnation" of processes that were replaced.
  std::set<std::string> retired_ ABSL_GUARDED_BY(mutex_);
};

// Has reports of state, which must be committed; values over steps are none.
bool HasDurableReports(const v1::SyncRequest& request);

// The state of a worker as ListWorkers shows it.
v1::Worker::State ReportedState(const v1::SyncRequest& request);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_WORKER_REGISTRY_H_
