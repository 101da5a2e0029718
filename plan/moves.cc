// PlanMoves and MoveSeconds of replacement.h.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plan/replacement.h"

namespace cadre {

absl::StatusOr<MovePlan> PlanMoves(const ExpertPlacement& from,
                                   const ExpertPlacement& to,
                                   const ExpertBytes& bytes) {
  const PlacementShape& shape = from.shape;
  if (!(shape == to.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts cannot move from ", shape.num_ranks, " x ",
        shape.slots_per_rank, " slots of ", shape.num_layers, " layers to ",
        to.shape.num_ranks, " x ", to.shape.slots_per_rank, " slots of ",
        to.shape.num_layers, " layers"));
  }
  MovePlan plan;
  std::vector<int64_t> sent(shape.num_ranks, 0), received(shape.num_ranks, 0);
  const auto add = [&](ExpertMove move, int64_t size) {
    const int64_t source = from.RankOfSlot(move.from_slot);
    const int64_t target = from.RankOfSlot(move.to_slot);
    if (source != target) {
      move.bytes = size;
      sent[source] += size;
      received[target] += size;
      plan.total_bytes += size;
    }
    plan.moves.push_back(move);
  };
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::vector<int32_t>& old = from.layers[l].slot_to_expert;
    for (int64_t slot = 0; slot < shape.num_slots(); ++slot) {
      const int32_t expert = to.layers[l].slot_to_expert[slot];
      if (expert < 0) continue;
      if (old[slot] != expert) {
        int64_t best = -1;
        for (int64_t i = 0; i < from.layers[l].slot_count[expert]; ++i) {
          const int64_t at = from.SlotOfCopy(l, expert, i);
          const int64_t rank = from.RankOfSlot(at);
          if (rank == from.RankOfSlot(slot)) {
            best = at;
            break;
          }
          if (best < 0 || sent[rank] < sent[from.RankOfSlot(best)]) best = at;
        }
        add({.what = ExpertMove::What::kWeights,
             .layer = l,
             .expert = expert,
             .from_slot = best,
             .to_slot = slot},
            bytes.weights);
      }
      const int64_t home = from.HomeSlot(l, expert);
      if (bytes.state > 0 && to.HomeSlot(l, expert) == slot && home != slot) {
        add({.what = ExpertMove::What::kState,
             .layer = l,
             .expert = expert,
             .from_slot = home,
             .to_slot = slot},
            bytes.state);
      }
    }
  }
  for (int64_t r = 0; r < shape.num_ranks; ++r) {
    plan.max_rank_bytes = std::max({plan.max_rank_bytes, sent[r], received[r]});
  }
  return plan;
}

double MoveSeconds(const MovePlan& plan, double bytes_per_second) {
  return plan.max_rank_bytes == 0
             ? 0.0
             : static_cast<double>(plan.max_rank_bytes) / bytes_per_second;
}

}  // namespace cadre
