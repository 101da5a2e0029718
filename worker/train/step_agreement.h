#ifndef CADRE_WORKER_TRAIN_STEP_AGREEMENT_H_
#define CADRE_WORKER_TRAIN_STEP_AGREEMENT_H_

// The collective that opens every step: one world maximum (and, through negated
// values, minimum). It proves that all ranks stand at the same step of the same
// attempt under the same placement of experts, and spreads wishes that any rank
// may have, so that a stop or a save takes effect at the same step everywhere.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/comm/communicator.h"

namespace cadre {

struct StepWishes {
  bool stop = false;
  bool save = false;
  // Placement of the experts in force, and the one that this rank could change
  // to (the same where there is none). Agreed: the lowest of those, so the one
  // that every rank holds.
  int64_t plan_epoch = 0, next_plan_epoch = 0;
};

// INTERNAL with both ends of the range where the ranks stand apart.
absl::StatusOr<StepWishes> AgreeOnStep(Communicator* world,
                                       int64_t attempt_epoch, int64_t step,
                                       const StepWishes& mine);

// FAILED_PRECONDITION when `value` (a digest, a count) is not the same on every
// rank.
absl::Status AgreeOnValue(Communicator* world, absl::string_view what,
                          int64_t value);

// The first error of any rank, everywhere: the rank's own, or ABORTED saying
// that a peer failed at `what`. Every rank calls it.
absl::Status AgreeOnStatus(Communicator* world, absl::string_view what,
                           const absl::Status& mine);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_STEP_AGREEMENT_H_
