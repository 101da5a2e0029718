#ifndef CADRE_PLAN_RELEASED_H_
#define CADRE_PLAN_RELEASED_H_

// What the workers of this release can do. The planner plans for more; a job
// that asks for more is refused, and a default never asks for more.

namespace cadre {

// parallelism.fsdp_shard_group_size and expert_parallel_size above 1,
// moe.spare_slots_per_rank above 0.
inline constexpr bool kHybridParallelismReleased = false;
// moe.overflow_policy other than dropless, moe.capacity_factor.
inline constexpr bool kOverflowPoliciesReleased = true;

}  // namespace cadre

#endif  // CADRE_PLAN_RELEASED_H_
