#ifndef CADRE_COORDINATOR_EXPERT_PLAN_H_
#define CADRE_COORDINATOR_EXPERT_PLAN_H_

// Where the experts of a job lie, over its life: what windows of loads, orders
// and words of the workers make of the state that the journal keeps. Pure
// functions around plan/replacement.h; thread-safe.
//
// At most one placement is ordered at a time. It belongs to an attempt: when
// that ends before the ranks have taken it over, it is void, and the next
// attempt begins with the one in force.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/job.pb.h"
#include "cadre/v1/worker_service.pb.h"
#include "plan/replacement.h"

namespace cadre::coordinator {

using state::v1::ExpertPlacementState;

// The placement that the job's present attempt is to change to; null: none.
const v1::ExpertPlacement* OrderedPlacement(const ExpertPlacementState& state,
                                            const v1::Job& job);

// Takes a window in; where the policy says so and the job file wants it, orders
// a placement (decision.adopt). A window that was taken before, or one without
// expert parallelism, changes nothing and is UNAVAILABLE.
absl::StatusOr<ReplacementDecision> TakeLoads(const v1::Job& job,
                                              const v1::ExpertLoads& loads,
                                              ExpertPlacementState* state);

// Orders what fits the loads so far best, whatever the gain; `adopt` is false
// where nothing would move. FAILED_PRECONDITION: NO_EXPERTS, NO_LOADS,
// REBALANCE_PENDING.
absl::StatusOr<ReplacementDecision> OrderReplacement(
    const v1::Job& job, ExpertPlacementState* state);

// Rank 0 says that a placement is in force. False, and nothing changes, for one
// that nobody ordered or that is old news.
bool TakePlaced(const v1::Job& job, const v1::ExpertsPlaced& placed,
                ExpertPlacementState* state);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_EXPERT_PLAN_H_
