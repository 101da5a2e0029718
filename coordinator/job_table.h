#ifndef CADRE_COORDINATOR_JOB_TABLE_H_
#define CADRE_COORDINATOR_JOB_TABLE_H_

// The committed jobs, as every reader sees them: published by the journal's
// writer after a commit, never before. Records are immutable and shared.
// Thread-safe.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/job.pb.h"

namespace cadre::coordinator {

using RecordPtr = std::shared_ptr<const state::v1::JobRecord>;

class JobTable {
 public:
  // Null when there is none. `id` is without "jobs/".
  RecordPtr Find(const std::string& id) const;
  // Newest first.
  std::vector<RecordPtr> All() const;
  // The same from below a creation sequence on, until the visitor says false.
  // It runs under the table's lock and must be quick.
  void Visit(int64_t below,
             const std::function<bool(const RecordPtr&)>& visitor) const;
  // The job whose present attempt has the worker as a member; null: none.
  RecordPtr HeldBy(const std::string& worker_id) const;

  // `gone`: ids of jobs that were deleted.
  void Publish(const std::vector<RecordPtr>& records,
               const std::vector<std::string>& gone = {});

  // The newest progress of a running job, which is not journaled.
  void SetProgress(const std::string& id, const v1::Progress& progress);
  // The job as the API shows it, with live progress. FULL view if `full`.
  v1::Job View(const state::v1::JobRecord& record, bool full) const;

  // Called after each Publish and SetProgress, outside the lock. Set once,
  // before the table is shared.
  void SetListener(std::function<void()> listener) {
    listener_ = std::move(listener);
  }

 private:
  std::function<void()> listener_;
  mutable absl::Mutex mutex_;
  std::map<std::string, RecordPtr> jobs_ ABSL_GUARDED_BY(mutex_);
  // Newest first.
  std::map<int64_t, RecordPtr, std::greater<>> order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> holder_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Progress> progress_ ABSL_GUARDED_BY(mutex_);
};

// "jobs/x" -> "x"; "" if it is not a job name.
std::string JobId(const std::string& name);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_JOB_TABLE_H_
