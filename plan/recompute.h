#ifndef CADRE_PLAN_RECOMPUTE_H_
#define CADRE_PLAN_RECOMPUTE_H_

// How many blocks of a model are replayed in the backward pass instead of
// keeping what they compute. The choice changes no bit of a deterministic job:
// routing decisions and sparse indices are kept anyway. Pure; thread-safe.
//
// The first blocks are the ones to replay: they would keep their activations
// for the longest time, from the beginning of a pass to its end.

#include <cstdint>

#include "absl/status/statusor.h"
#include "plan/memory_budget.h"

namespace cadre {

// The least number of blocks with which `request` (its own number is ignored)
// fits rank_bytes; all of them where it does not fit at all. INVALID_ARGUMENT
// as BudgetMemory.
absl::StatusOr<int> ChooseReplayedBlocks(const MemoryRequest& request,
                                         int64_t rank_bytes);

// "none", "partial" or "full".
const char* RecomputeName(int replayed_blocks, int num_blocks);

}  // namespace cadre

#endif  // CADRE_PLAN_RECOMPUTE_H_
