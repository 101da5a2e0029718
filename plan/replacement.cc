#include "plan/replacement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace cadre {

ReplacementPolicy::ReplacementPolicy(const ReplacementOptions& options,
                                     ExpertPlacement placement_in_force)
    : options_(options), placement_(std::move(placement_in_force)) {}

absl::StatusOr<ReplacementDecision> ReplacementPolicy::Candidate() const {
  ReplacementDecision out;
  CADRE_ASSIGN_OR_RETURN(
      const ExpertPlacement wanted,
      Place(average_, {.shape = placement_.shape,
                       .num_groups = options_.num_groups,
                       .num_nodes = options_.num_nodes,
                       .replicate = options_.replicate,
                       .plan_epoch = placement_.plan_epoch + 1}));
  // Without groups to keep together any rank may take any name.
  const bool grouped = options_.num_groups % options_.num_nodes == 0;
  CADRE_ASSIGN_OR_RETURN(out.placement,
                         KeepInPlace(placement_, wanted, average_,
                                     grouped ? options_.num_nodes : 1));
  CADRE_ASSIGN_OR_RETURN(
      out.moves, PlanMoves(placement_, *out.placement, options_.expert_bytes));
  out.move_seconds = MoveSeconds(out.moves, options_.bytes_per_second);
  return out;
}

absl::StatusOr<ReplacementDecision> ReplacementPolicy::Observe(
    const LoadWindow& window) {
  if (options_.bytes_per_second <= 0) {
    return absl::InvalidArgumentError(
        "the time of a move is unknown: set the bandwidth between ranks");
  }
  if (window.steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a load window of ", window.steps, " steps"));
  }
  if (static_cast<int64_t>(window.counts.size()) !=
      placement_.shape.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a load window of ", window.counts.size(),
        " layers for a placement of ", placement_.shape.num_layers));
  }
  for (const std::vector<double>& layer : window.counts) {
    if (static_cast<int64_t>(layer.size()) != placement_.shape.num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("a load window of ", layer.size(),
                       " experts instead of ", placement_.shape.num_experts));
    }
  }
  ReplacementDecision out;
  const bool resting = hold_off_ > 0;
  if (resting) --hold_off_;
  if (average_.empty()) {
    out.balancedness_now = out.balancedness_new =
        Balancedness(placement_, window.counts);
    out.reason = "the first window only starts the average";
  } else {
    CADRE_ASSIGN_OR_RETURN(out, Candidate());
    out.balancedness_now = Balancedness(placement_, window.counts);
    out.balancedness_new = Balancedness(*out.placement, window.counts);
    const double horizon = std::min<double>(
        window.steps_left, options_.horizon_windows * window.steps);
    out.saved_seconds = window.expert_seconds_per_step *
                        (1.0 - out.balancedness_now / out.balancedness_new) *
                        horizon;
    const bool worth =
        out.balancedness_new - out.balancedness_now >= options_.min_gain &&
        out.saved_seconds >= options_.gain_over_cost * out.move_seconds &&
        !out.moves.moves.empty();
    in_favour_ = worth && !resting ? in_favour_ + 1 : 0;
    out.adopt = in_favour_ >= options_.windows_in_row;
    out.reason = absl::StrFormat(
        "balancedness %.4f -> %.4f, saves %.3f s within %.0f steps, "
        "moving takes %.3f s: %s",
        out.balancedness_now, out.balancedness_new, out.saved_seconds, horizon,
        out.move_seconds,
        resting     ? "no move so soon after the last one"
        : out.adopt ? "adopted"
        : worth     ? absl::StrCat("worth it in ", in_favour_, " of ",
                                   options_.windows_in_row, " windows")
                    : std::string("not worth it"));
  }
  const auto steps = static_cast<double>(window.steps);
  average_steps_ = options_.ema * average_steps_ + steps;
  average_.resize(window.counts.size());
  for (size_t l = 0; l < window.counts.size(); ++l) {
    std::vector<double>& average = average_[l];
    average.resize(window.counts[l].size(), 0.0);
    for (size_t e = 0; e < average.size(); ++e) {
      const double rate = window.counts[l][e] / steps;
      average[e] += (rate - average[e]) * steps / average_steps_;
    }
  }
  return out;
}

absl::StatusOr<ReplacementDecision> ReplacementPolicy::Force() const {
  if (average_.empty()) {
    return absl::FailedPreconditionError(
        "no load was counted yet: wait for the first window");
  }
  CADRE_ASSIGN_OR_RETURN(ReplacementDecision out, Candidate());
  out.balancedness_now = Balancedness(placement_, average_);
  out.balancedness_new = Balancedness(*out.placement, average_);
  out.adopt = !out.moves.moves.empty();
  out.reason = absl::StrFormat(
      "ordered: balancedness %.4f -> %.4f, moving takes %.3f s%s",
      out.balancedness_now, out.balancedness_new, out.move_seconds,
      out.adopt ? "" : "; nothing would move");
  return out;
}

void ReplacementPolicy::Adopted(ExpertPlacement placement) {
  placement_ = std::move(placement);
  in_favour_ = 0;
  hold_off_ = options_.hold_off_windows;
}

void ReplacementPolicy::Restore(ExpertLoads average, double average_steps,
                                int windows_in_favour, int hold_off_left) {
  average_ = std::move(average);
  average_steps_ = average_steps;
  in_favour_ = windows_in_favour;
  hold_off_ = hold_off_left;
}

}  // namespace cadre
