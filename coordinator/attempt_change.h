#ifndef CADRE_COORDINATOR_ATTEMPT_CHANGE_H_
#define CADRE_COORDINATOR_ATTEMPT_CHANGE_H_

// How an attempt changes its job's record: placement, failure, saves, results.
// Each function edits a JobChange; the caller saves it. They run on the
// journal's writer thread. All are idempotent where a worker may repeat itself.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/attempt.h"
#include "coordinator/ledger.h"

namespace cadre::coordinator {

// Begins the next attempt: epoch + 1, members, resume point = newest committed
// checkpoint.
absl::Status StartAttempt(Ledger& ledger, absl::Time now,
                          const std::vector<state::v1::Member>& members,
                          JobChange* change);

// Ends the attempt for the verdict's reason: charges the cause, then RECOVERING
// or, without budget, FAILED. Returns how long to wait before the next attempt.
absl::StatusOr<absl::Duration> FailAttempt(Ledger& ledger, absl::Time now,
                                           const Verdict& verdict,
                                           int64_t highest_step,
                                           JobChange* change);

// Makes the restart budgets whole.
void RestoreBudgets(JobChange* change);

// Closes the record of the running attempt.
void EndAttempt(absl::Time now, v1::FailureCause cause,
                const std::string& detail, int64_t step, JobChange* change);

// Takes one report of the member at `rank` in. Reports of other epochs and
// repeated ones change nothing.
void ApplyReport(const v1::Report& report, int rank, absl::Time now,
                 JobChange* change);

// The newest save that all ranks have reported and that waits for its seal;
// null: none.
const state::v1::PendingSave* SaveToSeal(const state::v1::JobRecord& record);

// All a rank needs for the current attempt.
v1::Assignment MakeAssignment(const state::v1::JobRecord& record, int rank);
// Changes with every attempt and never else.
std::string AssignmentDigest(const state::v1::JobRecord& record, int rank);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ATTEMPT_CHANGE_H_
