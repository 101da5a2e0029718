#ifndef CADRE_COORDINATOR_ATTEMPT_H_
#define CADRE_COORDINATOR_ATTEMPT_H_

// What the reports of a gang mean for its attempt. Pure functions of the job's
// record and the workers' last words, called again after every change: nothing
// depends on the order of calls. Thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/timeouts.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/worker_service.pb.h"
#include "coordinator/job.h"
#include "coordinator/worker_registry.h"

namespace cadre::coordinator {

// One rank of an attempt as it is now.
struct RankView {
  bool known = false;  // its process has called since the coordinator started
  bool replaced = false;  // another process speaks for the worker now
  bool lease_live = false;
  bool holds = false;      // its last words were about this attempt
  bool let_go = false;     // took the attempt up, then spoke without it
  absl::Duration silent;   // since its last words, or the coordinator's start
  absl::Duration stalled;  // since its step or collective counter last grew
  absl::Duration longest_gap;  // between two advances in this attempt
  bool reporting = false;      // its last words had reports, not all committed
  v1::SyncRequest last;        // meaningful when known
};

struct GangView {
  std::vector<RankView> ranks;
  absl::Duration in_state;  // since the job's state was entered or restarted
  bool warming_up = false;  // less than one lease since the coordinator started
  bool suspect_self = false;  // several workers, all silent
};

// Puts the members of `record` together with what the registry has.
GangView MakeGangView(const state::v1::JobRecord& record,
                      const WorkerRegistry& registry, absl::Duration now,
                      absl::Duration started);

struct Verdict {
  std::optional<Trigger> trigger;  // empty: nothing to do
  // With kAttemptFailed:
  v1::FailureCause cause = v1::FAILURE_CAUSE_UNSPECIFIED;
  int rank = -1;
  std::string detail;
  std::string evidence;
  google::rpc::Status status;
  // Ranks out of their lease that are given the benefit of the doubt.
  std::vector<int> unreachable;
};

Verdict Judge(const state::v1::JobRecord& record, const GangView& gang,
              const Timeouts& timeouts);

// How far the ranks may go now.
v1::DesiredRun::Target TargetOf(const state::v1::JobRecord& record,
                                const GangView& gang, int rank);

// A rank's last words had reports that may not be committed yet.
bool Reporting(const GangView& gang);

// Highest step any rank has reported.
int64_t HighestStep(const GangView& gang);

// No verdict on a gang of which no member answers before this.
inline constexpr absl::Duration kNobodyReachable = absl::Seconds(60);
// A recovering job goes back to the queue after this long without a gang.
inline constexpr absl::Duration kReplacementWait = absl::Seconds(60);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ATTEMPT_H_
