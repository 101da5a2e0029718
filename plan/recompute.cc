#include "plan/recompute.h"

#include "base/status_macros.h"

namespace cadre {

absl::StatusOr<int> ChooseReplayedBlocks(const MemoryRequest& request,
                                         int64_t rank_bytes) {
  const int blocks = static_cast<int>(request.model->blocks.size());
  const auto fits = [&](int replayed) -> absl::StatusOr<bool> {
    MemoryRequest wanted = request;
    wanted.replayed_blocks = replayed;
    CADRE_ASSIGN_OR_RETURN(const MemoryBudget budget, BudgetMemory(wanted));
    return budget.total <= rank_bytes;
  };
  CADRE_ASSIGN_OR_RETURN(const bool none, fits(0));
  if (none) return 0;
  // From the first replay on, which needs room for itself, each block that is
  // replayed takes memory away.
  int too_few = 0, enough = blocks;
  while (enough - too_few > 1) {
    const int middle = (too_few + enough) / 2;
    CADRE_ASSIGN_OR_RETURN(const bool here, fits(middle));
    (here ? enough : too_few) = middle;
  }
  return enough;
}

const char* RecomputeName(int replayed_blocks, int num_blocks) {
  if (replayed_blocks == 0) return "none";
  return replayed_blocks < num_blocks ? "partial" : "full";
}

}  // namespace cadre
