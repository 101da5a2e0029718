#ifndef CADRE_PLAN_RELEASED_H_
#define CADRE_PLAN_RELEASED_H_

// What the workers of this release can do. The planner plans for more; a job
// that asks for more is refused, and a default never asks for more.

#include "absl/strings/string_view.h"

namespace cadre {

// parallelism.fsdp_shard_group_size and expert_parallel_size above 1.
inline bool HybridParallelismReleased(absl::string_view backend) {
  return backend == "cpu" || backend == "cuda";
}
// moe.overflow_policy other than dropless, and moe.capacity_factor with it: the
// GPU's router knows no capacity.
inline bool OverflowPoliciesReleased(absl::string_view backend) {
  return backend == "cpu";
}

// moe.rebalance other than off and moe.spare_slots_per_rank: experts move on
// the CPU's engine, whose ranks can share them out.
inline bool ReplacementReleased(absl::string_view backend) {
  return backend == "cpu";
}

}  // namespace cadre

#endif  // CADRE_PLAN_RELEASED_H_
