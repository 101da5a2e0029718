#ifndef CADRE_COORDINATOR_RENDEZVOUS_H_
#define CADRE_COORDINATOR_RENDEZVOUS_H_

// How the ranks of an attempt find each other: each publishes keys and values
// with its Sync, all get the union. Values of an epoch are never seen in
// another. Kept in memory: ranks publish again after a restart. Thread-safe.

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cadre/v1/worker_service.pb.h"

namespace cadre::coordinator {

class Rendezvous {
 public:
  // Values of one rank and attempt together.
  static constexpr int64_t kMaxBytesPerRank = 64 << 10;

  // Takes what the request's state publishes. INVALID_ARGUMENT above the
  // limit. Values of an older epoch of the job are ignored; a newer epoch
  // forgets the older one's.
  absl::Status Publish(const v1::SyncRequest& request);

  v1::Rendezvous Merged(const std::string& job, int64_t epoch) const;
  // The job has no attempt any more.
  void Forget(const std::string& job);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, v1::Rendezvous> by_job_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_RENDEZVOUS_H_
