#ifndef CADRE_PLAN_REPLACEMENT_H_
#define CADRE_PLAN_REPLACEMENT_H_

// When experts move to other slots during training, and what moves. A pure
// state machine over windows of routing counts: one call of Observe per window
// (moe.rebalance_every steps), no clock, no I/O. Not thread-safe; a value that
// can be copied, so that it can be stored with a checkpoint.
//
//   ReplacementPolicy policy(options, placement_in_force);
//   ASSIGN_OR_RETURN(ReplacementDecision d, policy.Observe(window));
//   if (d.adopt) { publish d.placement; policy.Adopted(d.placement); }

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/expert_placement.h"

namespace cadre {

// One transfer between slots of an EP group; every expert replica does the
// same.
struct ExpertMove {
  enum class What {
    kWeights,  // base weights and adapter, to a slot that holds another expert
    kState,    // master, m and v, from the old home to the new one
  } what = What::kWeights;
  int64_t layer = 0;
  int32_t expert = 0;
  // Weights: a slot that holds the expert now; on the destination's own rank if
  // there is one, else the copy whose rank has sent the least so far, lower
  // slot first. State: the old home.
  int64_t from_slot = 0;
  int64_t to_slot = 0;
  int64_t bytes = 0;  // over a link; 0 for a copy within one rank
  bool operator==(const ExpertMove&) const = default;
};

struct MovePlan {
  std::vector<ExpertMove> moves;  // by (layer, to_slot, what): transfer order
  int64_t total_bytes = 0;        // over links
  // The most bytes that one rank receives or sends.
  int64_t max_rank_bytes = 0;
};

struct ExpertBytes {
  // Base weights of one expert of one layer with its bf16 adapter.
  int64_t weights = 0;
  // Master, m and v of whatever is trained of it (its adapter, or itself).
  int64_t state = 0;
};

// What must move from one placement to another of the same shape
// (INVALID_ARGUMENT otherwise). Without state bytes there are no moves of
// state.
absl::StatusOr<MovePlan> PlanMoves(const ExpertPlacement& from,
                                   const ExpertPlacement& to,
                                   const ExpertBytes& bytes);

// max over ranks of bytes in or out / bandwidth, in seconds.
double MoveSeconds(const MovePlan& plan, double bytes_per_second);

struct ReplacementOptions {
  // As for Place; shape and plan_epoch come from the placement in force.
  int64_t num_groups = 1, num_nodes = 1;
  bool replicate = true;   // false when replicas would cost too much (full)
  double ema = 0.9;        // weight that the past keeps from window to window
  double min_gain = 0.03;  // least rise of balancedness
  double gain_over_cost = 2.0;  // saved seconds / seconds of moving
  int windows_in_row = 2;       // that must agree before a move
  int hold_off_windows = 2;     // without a move after one
  double horizon_windows = 10;  // the gain is counted at most that far ahead
  ExpertBytes expert_bytes;
  double bytes_per_second = 0.0;  // slowest link between EP ranks; required
};

struct LoadWindow {
  ExpertLoads counts;      // rows per (layer, logical expert) in the window
  int64_t steps = 0;       // optimizer steps in the window, above 0
  int64_t steps_left = 0;  // of the job, after the window
  // Measured seconds per step of the slowest rank's expert phase.
  double expert_seconds_per_step = 0.0;
};

struct ReplacementDecision {
  bool adopt = false;
  // Why, or why not, with the numbers: for events and `cadre`.
  std::string reason;
  // Balancedness of the placement in force and of the candidate, both on this
  // window, which the candidate has not seen.
  double balancedness_now = 1.0, balancedness_new = 1.0;
  double saved_seconds = 0.0, move_seconds = 0.0;
  // Set when there is a candidate; plan_epoch is the one in force + 1.
  std::optional<ExpertPlacement> placement;
  MovePlan moves;
};

class ReplacementPolicy {
 public:
  ReplacementPolicy(const ReplacementOptions& options,
                    ExpertPlacement placement_in_force);

  // Judges a window. The candidate is fitted to the average of the windows
  // before it and scored on this one, so a drifting load cannot flatter itself;
  // then the average takes the window in: rows per step over all windows seen,
  // each weighing its steps times ema^age. (An average that began as the first
  // window would be little else for ten windows.) Adopt if
  //   t_moe (1 - b_now / b_new) horizon >= gain_over_cost x move time  and
  //   b_new - b_now >= min_gain,
  // in windows_in_row windows running, horizon = min(steps left,
  // horizon_windows windows), and not within the hold-off.
  absl::StatusOr<ReplacementDecision> Observe(const LoadWindow& window);

  // A candidate for the average as it is, whatever the gain (an operator's
  // order). FAILED_PRECONDITION before the first window.
  absl::StatusOr<ReplacementDecision> Force() const;

  // The fleet runs this placement from now on: starts the hold-off.
  void Adopted(ExpertPlacement placement);

  const ExpertPlacement& placement() const { return placement_; }
  const ExpertLoads& average() const { return average_; }
  // What the average weighs, in steps.
  double average_steps() const { return average_steps_; }
  int windows_in_favour() const { return in_favour_; }
  int hold_off_left() const { return hold_off_; }
  // State that was written down; empty loads: none was seen.
  void Restore(ExpertLoads average, double average_steps, int windows_in_favour,
               int hold_off_left);

 private:
  absl::StatusOr<ReplacementDecision> Candidate() const;

  ReplacementOptions options_;
  ExpertPlacement placement_;
  ExpertLoads average_;  // rows per step; empty before the first window
  double average_steps_ = 0.0;
  int in_favour_ = 0;
  int hold_off_ = 0;
};

}  // namespace cadre

#endif  // CADRE_PLAN_REPLACEMENT_H_
