#include "worker/train/step_agreement.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace cadre {

absl::StatusOr<StepWishes> AgreeOnStep(Communicator* world,
                                       int64_t attempt_epoch, int64_t step,
                                       const StepWishes& mine) {
  // The negation of a value turns its maximum into the minimum.
  std::array<int64_t, 9> all = {
      attempt_epoch,   -attempt_epoch,   step,
      -step,           mine.stop,        mine.save,
      mine.plan_epoch, -mine.plan_epoch, -mine.next_plan_epoch};
  CADRE_RETURN_IF_ERROR(Annotate(world->AllReduceMax(absl::MakeSpan(all)),
                                 absl::StrCat("opening step ", step)));
  if (all[0] != -all[1] || all[2] != -all[3] || all[6] != -all[7]) {
    return absl::InternalError(absl::StrCat(
        "the ranks stand apart: attempts ", -all[1], " to ", all[0], ", steps ",
        -all[3], " to ", all[2], ", expert placements ", -all[7], " to ",
        all[6], "; this one at attempt ", attempt_epoch, ", step ", step,
        ", placement ", mine.plan_epoch));
  }
  return StepWishes{.stop = all[4] != 0,
                    .save = all[5] != 0,
                    .plan_epoch = mine.plan_epoch,
                    .next_plan_epoch = -all[8]};
}

absl::Status AgreeOnValue(Communicator* world, absl::string_view what,
                          int64_t value) {
  std::array<int64_t, 2> range = {value, ~value};
  CADRE_RETURN_IF_ERROR(world->AllReduceMax(absl::MakeSpan(range)));
  if (range[0] == ~range[1]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks disagree on ", what,
                   "; give all workers the same files and the same build"));
}

absl::Status AgreeOnStatus(Communicator* world, absl::string_view what,
                           const absl::Status& mine) {
  std::array<int64_t, 1> failed = {mine.ok() ? 0 : 1};
  const absl::Status agreed = world->AllReduceMax(absl::MakeSpan(failed));
  CADRE_RETURN_IF_ERROR(mine);
  CADRE_RETURN_IF_ERROR(agreed);
  if (failed[0] == 0) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(what, " failed on another rank"));
}

}  // namespace cadre
