#ifndef CADRE_COORDINATOR_SCHEDULER_H_
#define CADRE_COORDINATOR_SCHEDULER_H_

// Which waiting jobs get which workers now. A pure function: the same input
// gives the same placement; ties go by worker id. Thread-safe.
//
// A gang is placed as a whole or not at all, so jobs never hold half a gang and
// wait for each other. Order: recovering jobs, then priority (high first), then
// the queue's order. A smaller job may pass a blocked one for 30 minutes; then
// the workers that the blocked job could use are kept for it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::coordinator {

struct WorkerSlot {
  std::string id;
  std::string backend;
  int64_t memory_bytes = 0;
  std::string link_domain;
  std::string hostname;
  std::map<std::string, std::string> labels;
  enum class Use { kFree, kBusy, kCordoned, kUnreachable } use = Use::kFree;
};

struct WaitingJob {
  std::string id;
  int priority = 0;
  int64_t sequence = 0;
  bool recovering = false;  // just lost a member; holds its former workers
  bool requeued = false;    // back in the queue: ahead of its priority class
  absl::Duration waited;
  absl::Duration backoff_left;  // > 0: not before that
  int num_workers = 0;
  std::string backend;
  int64_t min_memory_bytes = 0;
  int max_link_domains = 0;  // 0: any number
  std::map<std::string, std::string> selector;
  std::vector<std::string> former_workers;
};

struct Placement {
  std::string job;
  std::vector<std::string> workers;  // by rank
};

struct WaitReason {
  std::string job;
  std::string code;     // v1.QueueReason.code
  std::string message;  // with the numbers
};

struct SchedulerPass {
  std::vector<Placement> placements;
  std::vector<WaitReason> reasons;  // of every job that was not placed
};

inline constexpr absl::Duration kMayBePassedFor = absl::Minutes(30);

// warming_up: nothing is placed, since workers are still coming back.
SchedulerPass Schedule(std::vector<WaitingJob> jobs,
                       std::vector<WorkerSlot> workers, bool warming_up);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SCHEDULER_H_
