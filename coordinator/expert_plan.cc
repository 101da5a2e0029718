#include "coordinator/expert_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "plan/placement_proto.h"

namespace cadre::coordinator {
namespace {

// Between ranks, until a move was measured: a slow network, so that the first
// move is not made lightly.
constexpr double kAssumedBytesPerSecond = 1e9;
// Less than this says more about latencies than about bandwidth.
constexpr int64_t kLeastMeasuredBytes = int64_t{1} << 20;

PlacementShape ShapeOf(const v1::ExpertLoads& loads) {
  return {.num_layers = loads.layers_size(),
          .num_experts = loads.layers(0).tokens_size(),
          .num_ranks = loads.layers(0).rank_tokens_size(),
          .slots_per_rank = loads.slots_per_rank()};
}

PlacementShape ShapeOf(const v1::ExpertPlacement& placement) {
  return {.num_layers = placement.layers_size(),
          .num_experts = placement.num_experts(),
          .num_ranks = placement.num_ranks(),
          .slots_per_rank = placement.slots_per_rank()};
}

// What an average weighs that took in the windows of so many steps.
double AverageSteps(const v1::MoeSpec& moe, int64_t steps) {
  const double window = std::max(1, moe.rebalance_every());
  const double ema = ReplacementOptions().ema;
  return window * (1 - std::pow(ema, static_cast<double>(steps) / window)) /
         (1 - ema);
}

// After `steps` steps of the job.
absl::StatusOr<ReplacementPolicy> MakePolicy(const v1::Job& job,
                                             const ExpertPlacementState& state,
                                             int64_t steps) {
  CADRE_ASSIGN_OR_RETURN(ExpertPlacement placement,
                         FromProto(state.placement()));
  const v1::MoeSpec& moe = job.config_snapshot().moe();
  ReplacementPolicy policy(
      {.replicate = moe.placement() != "greedy",
       .min_gain = moe.rebalance_min_gain(),
       .expert_bytes = {.weights = state.expert_bytes(),
                        .state = state.expert_state_bytes()},
       .bytes_per_second = state.bytes_per_second() > 0
                               ? state.bytes_per_second()
                               : kAssumedBytesPerSecond},
      std::move(placement));
  ExpertLoads average;
  for (const auto& layer : state.average()) {
    average.emplace_back(layer.rows().begin(), layer.rows().end());
  }
  const double weight = average.empty() ? 0.0 : AverageSteps(moe, steps);
  policy.Restore(std::move(average), weight, state.windows_in_favour(),
                 state.hold_off_left());
  return policy;
}

void Keep(const ReplacementPolicy& policy, ExpertPlacementState* state) {
  state->clear_average();
  for (const std::vector<double>& layer : policy.average()) {
    state->add_average()->mutable_rows()->Assign(layer.begin(), layer.end());
  }
  state->set_windows_in_favour(policy.windows_in_favour());
  state->set_hold_off_left(policy.hold_off_left());
}

// No epoch is used twice in a job, not even by one that came to nothing.
void Order(const v1::Job& job, ReplacementDecision* decision,
           ExpertPlacementState* state) {
  state->set_last_plan_epoch(
      std::max(state->last_plan_epoch(), state->placement().plan_epoch()) + 1);
  decision->placement->plan_epoch = state->last_plan_epoch();
  *state->mutable_next() = ToProto(*decision->placement, job.attempt_epoch());
}

}  // namespace

const v1::ExpertPlacement* OrderedPlacement(const ExpertPlacementState& state,
                                            const v1::Job& job) {
  return state.has_next() && state.next().attempt_epoch() == job.attempt_epoch()
             ? &state.next()
             : nullptr;
}

absl::StatusOr<ReplacementDecision> TakeLoads(const v1::Job& job,
                                              const v1::ExpertLoads& loads,
                                              ExpertPlacementState* state) {
  if (loads.layers_size() == 0 || loads.slots_per_rank() == 0 ||
      loads.layers(0).rank_tokens_size() <= 1) {
    return absl::UnavailableError("the experts are not spread over ranks");
  }
  if (state->window_attempt_epoch() == job.attempt_epoch() &&
      loads.last_step() <= state->last_step()) {
    return absl::UnavailableError(absl::StrCat(
        "the loads up to step ", loads.last_step(), " were taken before"));
  }
  const PlacementShape shape = ShapeOf(loads);
  if (!(ShapeOf(state->placement()) == shape)) {
    // The first window, or the job goes on with another layout.
    CADRE_ASSIGN_OR_RETURN(ExpertPlacement first, PlaceContiguous(shape));
    first.plan_epoch = loads.plan_epoch();
    *state->mutable_placement() = ToProto(first, job.attempt_epoch());
    state->clear_next();
    state->clear_average();
  }
  state->set_window_attempt_epoch(job.attempt_epoch());
  state->set_last_step(loads.last_step());
  state->set_expert_seconds(loads.expert_seconds());
  state->set_expert_bytes(loads.expert_bytes());
  state->set_expert_state_bytes(loads.expert_state_bytes());
  CADRE_ASSIGN_OR_RETURN(
      ReplacementPolicy policy,
      MakePolicy(job, *state, std::max<int64_t>(0, loads.first_step() - 1)));
  LoadWindow window{.steps = loads.last_step() - loads.first_step() + 1,
                    .steps_left = loads.steps_left(),
                    .expert_seconds_per_step = loads.expert_seconds()};
  for (const auto& layer : loads.layers()) {
    window.counts.emplace_back(layer.tokens().begin(), layer.tokens().end());
  }
  CADRE_ASSIGN_OR_RETURN(ReplacementDecision decision, policy.Observe(window));
  const v1::MoeSpec& moe = job.config_snapshot().moe();
  if (moe.rebalance() != "auto" || moe.placement() == "contiguous" ||
      job.state() != v1::JOB_STATE_RUNNING) {
    decision.adopt = false;
  } else if (OrderedPlacement(*state, job) != nullptr) {
    decision.adopt = false;
    absl::StrAppend(&decision.reason, "; placement ",
                    state->next().plan_epoch(), " is still on its way");
  }
  Keep(policy, state);
  if (decision.adopt) Order(job, &decision, state);
  state->set_decision(decision.reason);
  return decision;
}

absl::StatusOr<ReplacementDecision> OrderReplacement(
    const v1::Job& job, ExpertPlacementState* state) {
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  if (job.plan().expert_parallel_size() <= 1) {
    return Error(kFailed, "NO_EXPERTS",
                 absl::StrCat(job.name(),
                              " keeps all its experts on every rank: there is "
                              "nothing to move; set "
                              "parallelism.expert_parallel_size above 1"));
  }
  if (job.config_snapshot().moe().placement() == "contiguous") {
    return Error(kFailed, "NO_EXPERTS",
                 absl::StrCat(job.name(),
                              " has moe.placement: contiguous, "
                              "which keeps its experts in order"));
  }
  if (state->average().empty()) {
    return Error(kFailed, "NO_LOADS",
                 absl::StrCat(job.name(), " has not counted a window of ",
                              job.config_snapshot().moe().rebalance_every(),
                              " steps yet: repeat the order then"));
  }
  if (const auto* ordered = OrderedPlacement(*state, job)) {
    return Error(
        kFailed, "REBALANCE_PENDING",
        absl::StrCat("the ranks of ", job.name(),
                     " are on their way to placement ", ordered->plan_epoch(),
                     ": repeat the order later"));
  }
  CADRE_ASSIGN_OR_RETURN(const ReplacementPolicy policy,
                         MakePolicy(job, *state, state->last_step()));
  CADRE_ASSIGN_OR_RETURN(ReplacementDecision decision, policy.Force());
  if (decision.adopt) Order(job, &decision, state);
  state->set_decision(decision.reason);
  return decision;
}

bool TakePlaced(const v1::Job& job, const v1::ExpertsPlaced& placed,
                ExpertPlacementState* state) {
  if (placed.has_placement()) {
    // It came with a checkpoint of another job.
    if (state->has_placement() &&
        state->placement().plan_epoch() >= placed.plan_epoch()) {
      return false;
    }
    if (!FromProto(placed.placement()).ok()) return false;
    *state->mutable_placement() = placed.placement();
    state->set_last_plan_epoch(
        std::max(state->last_plan_epoch(), placed.plan_epoch()));
    return true;
  }
  const v1::ExpertPlacement* const ordered = OrderedPlacement(*state, job);
  if (ordered == nullptr || ordered->plan_epoch() != placed.plan_epoch()) {
    return false;
  }
  *state->mutable_placement() = *ordered;
  state->clear_next();
  state->set_replacements(state->replacements() + 1);
  state->set_windows_in_favour(0);
  state->set_hold_off_left(ReplacementOptions().hold_off_windows);
  if (placed.seconds() > 0 && placed.max_rank_bytes() >= kLeastMeasuredBytes) {
    state->set_bytes_per_second(static_cast<double>(placed.max_rank_bytes()) /
                                placed.seconds());
  }
  return true;
}

}  // namespace cadre::coordinator
