#ifndef CADRE_WORKER_MOE_EXPERT_PARALLEL_H_
#define CADRE_WORKER_MOE_EXPERT_PARALLEL_H_

// Which slots of a placement (plan/expert_placement.h) are those of one rank.
// A plain value.

#include <cstdint>

#include "plan/expert_placement.h"

namespace cadre {

struct ExpertParallel {
  int rank = 0;               // among the ranks that share one copy
  ExpertPlacement placement;  // the same on all of them

  int size() const { return static_cast<int>(placement.shape.num_ranks); }
  int64_t slots_per_rank() const { return placement.shape.slots_per_rank; }
  int64_t first_slot() const { return rank * slots_per_rank(); }
};

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_EXPERT_PARALLEL_H_
