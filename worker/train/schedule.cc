#include "worker/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {

absl::StatusOr<ScheduleKind> ParseScheduleKind(absl::string_view name) {
  if (name.empty() || name == "cosine") return ScheduleKind::kCosine;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "constant") return ScheduleKind::kConstant;
  return absl::InvalidArgumentError(
      absl::StrCat("training.schedule is \"", name,
                   "\"; it must be constant, linear or cosine"));
}

absl::Status LearningRateSchedule::Validate() const {
  const auto check = [](bool good, absl::string_view field, double value,
                        absl::string_view range) {
    return good ? absl::OkStatus()
                : absl::InvalidArgumentError(absl::StrCat(
                      field, " is ", value, "; it must be in ", range));
  };
  CADRE_RETURN_IF_ERROR(
      check(peak > 0 && peak <= 1, "training.learning_rate", peak, "(0, 1]"));
  CADRE_RETURN_IF_ERROR(check(warmup_ratio >= 0 && warmup_ratio <= 0.5,
                              "training.warmup_ratio", warmup_ratio,
                              "[0, 0.5]"));
  return check(min_lr_ratio >= 0 && min_lr_ratio <= 1, "training.min_lr_ratio",
               min_lr_ratio, "[0, 1]");
}

int64_t LearningRateSchedule::warmup_steps() const {
  // Rounding in the product must not add a step to a whole number of them.
  return static_cast<int64_t>(
      std::ceil(warmup_ratio * static_cast<double>(total_steps) - 1e-9));
}

double LearningRateSchedule::At(int64_t step) const {
  const int64_t warmup = warmup_steps();
  if (step < warmup) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (kind == ScheduleKind::kConstant) return peak;
  // 0 at the first step behind the warm-up, 1 at the last step.
  const double span = static_cast<double>(total_steps - 1 - warmup);
  const double progress =
      span > 0 ? std::min(1.0, static_cast<double>(step - warmup) / span) : 0.0;
  const double share = kind == ScheduleKind::kLinear
                           ? 1 - progress
                           : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return peak * (min_lr_ratio + (1 - min_lr_ratio) * share);
}

}  // namespace cadre
