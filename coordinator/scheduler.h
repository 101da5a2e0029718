#ifndef CADRE_COORDINATOR_SCHEDULER_H_
#define CADRE_COORDINATOR_SCHEDULER_H_

// Which waiting jobs get which workers now. A pure function: the same input
// gives the same placement; ties go by worker id. Thread-safe.
//
// A gang is placed as a whole or not at all, so jobs never hold half a gang and
// wait for each other. Order: recovering jobs, then priority (high first, and
// one higher for every ten minutes of waiting, so that nobody starves), then
// the queue's order. A smaller job may pass a blocked one for 30 minutes; then
// the workers that the blocked job could use are kept for it. A job that lost a
// worker and may go on with fewer gets the largest gang there is.

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
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
  std::string owner;
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
  // Numbers of workers that do as well, largest first; taken only when there
  // are not num_workers.
  std::vector<int> smaller;
};

// A job that holds workers.
struct HoldingJob {
  std::string id;
  std::string owner;
  int priority = 0;
  absl::Time start;
  bool running = false;  // not on its way down or up
  bool leaving = false;  // saving before it gives its workers back
  std::vector<std::string> workers;
};

// Per owner; 0: no limit.
struct Quota {
  int running_jobs = 0;
  int running_workers = 0;
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

// Where a job stands in the queue: smaller is earlier.
using QueueRank = std::tuple<bool, int, bool, int64_t>;
QueueRank RankInQueue(bool recovering, int priority, absl::Duration waited,
                      bool requeued, int64_t sequence);

struct SchedulerInput {
  std::vector<WaitingJob> waiting;
  std::vector<HoldingJob> holding;
  std::vector<WorkerSlot> workers;
  Quota quota;
  bool warming_up = false;  // nothing is placed: workers are still coming back
  bool disk_full = false;   // nothing is placed: it could not be written down
  bool preemption = false;
};

struct SchedulerPass {
  std::vector<Placement> placements;
  std::vector<WaitReason> reasons;  // of every job that was not placed
  // Jobs to be stopped with a save, for a job of higher priority.
  std::vector<std::string> preempt;
};

inline constexpr absl::Duration kMayBePassedFor = absl::Minutes(30);
// Waiting this long is worth one point of priority.
inline constexpr absl::Duration kAgeing = absl::Minutes(10);
// Jobs looked at in one pass; those behind wait for the next.
inline constexpr size_t kMaxCandidates = 256;
// A job may push out only those whose priority is lower by this much.
inline constexpr int kPreemptionGap = 20;

SchedulerPass Schedule(SchedulerInput input);

// Backend, memory and labels are what the job asks for.
bool Fits(const WaitingJob& job, const WorkerSlot& worker);

// Why a job behind kMaxCandidates others is not looked at.
WaitReason FarBehind(const std::string& job);

// Which of the holding jobs must go so that a job of `priority` that `needs` so
// many of the fitting workers finds room; empty: none would help, or enough are
// leaving already. Lowest priority first, then the latest started.
std::vector<std::string> ChooseVictims(int priority, int needs, int free,
                                       const std::vector<std::string>& fitting,
                                       std::vector<HoldingJob> holding);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SCHEDULER_H_
