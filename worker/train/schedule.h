#ifndef CADRE_WORKER_TRAIN_SCHEDULE_H_
#define CADRE_WORKER_TRAIN_SCHEDULE_H_

// Learning rate of every step. Pure.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

enum class ScheduleKind { kConstant, kLinear, kCosine };

// "constant", "linear", "cosine"; "" is cosine.
absl::StatusOr<ScheduleKind> ParseScheduleKind(absl::string_view name);

struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 1e-4;
  double warmup_ratio = 0.03;  // share of total_steps, rounded up
  double min_lr_ratio = 0.1;   // final over peak
  int64_t total_steps = 1;

  // INVALID_ARGUMENT naming the field and its limits.
  absl::Status Validate() const;
  int64_t warmup_steps() const;
  // Rate of the update that follows `step` finished steps, 0-based. Rises
  // linearly to peak over the warm-up (the first update has peak / warm-up
  // steps), then stays, or falls to min_lr_ratio * peak at the last step.
  double At(int64_t step) const;
};

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_SCHEDULE_H_
