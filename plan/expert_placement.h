#ifndef CADRE_PLAN_EXPERT_PLACEMENT_H_
#define CADRE_PLAN_EXPERT_PLACEMENT_H_

// Which expert lies in which slot. A *logical* id is the index of an expert in
// the base model; a *slot* is a position in the fleet:
//
//   slot = ep_rank * slots_per_rank + local
//
// Routers, losses, logs, checkpoints and exports speak logical ids; only
// dispatch and the store of expert weights know slots. A placement is the same
// in every expert replica (EDP). Pure functions and plain values; thread-safe.
//
//   CADRE_ASSIGN_OR_RETURN(ExpertPlacement p, PlaceContiguous({.num_layers =
//   92,
//       .num_experts = 896, .num_ranks = 64, .slots_per_rank = 15}));
//   p.layers[0].slot_to_expert[slot];  // -1: the slot is empty
//   SlotOfRow(p, layer, expert, ep_rank, j);  // where the j-th row goes

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

// Rows per logical expert [E] of each mixture-of-experts layer [L]. Layers are
// counted over MoE layers only, in model order, here and everywhere below.
using ExpertLoads = std::vector<std::vector<double>>;

struct LayerPlacement {
  std::vector<int32_t> slot_to_expert;   // [slots], -1: empty
  std::vector<int32_t> expert_to_slots;  // [E, max_copies], ascending, -1 pads
  std::vector<int32_t> slot_count;       // [E], at least 1
  bool operator==(const LayerPlacement&) const = default;
};

struct PlacementShape {
  int64_t num_layers = 0;
  int64_t num_experts = 0;
  int64_t num_ranks = 1;  // expert_parallel_size
  int64_t slots_per_rank = 0;
  int64_t num_slots() const { return num_ranks * slots_per_rank; }
  bool operator==(const PlacementShape&) const = default;
};

struct ExpertPlacement {
  // Counts the placements of an attempt; one number for all layers. Rows packed
  // under one epoch are never unpacked under another.
  int64_t plan_epoch = 0;
  PlacementShape shape;
  // Row width of expert_to_slots: the most copies of any expert of any layer.
  int64_t max_copies = 1;
  std::vector<LayerPlacement> layers;
  bool operator==(const ExpertPlacement&) const = default;

  int64_t RankOfSlot(int64_t slot) const { return slot / shape.slots_per_rank; }
  // Slot of copy i of an expert, 0 <= i < slot_count.
  int64_t SlotOfCopy(int64_t layer, int64_t expert, int64_t i) const {
    return layers[layer].expert_to_slots[expert * max_copies + i];
  }
  // The lowest slot of an expert: the only copy that owns optimizer state.
  int64_t HomeSlot(int64_t layer, int64_t expert) const {
    return SlotOfCopy(layer, expert, 0);
  }
};

// Slot of the j-th row (from 0) that rank `ep_rank` sends to `expert` in one
// dispatch: copy (ep_rank + j) % slot_count. It depends on ids alone, so a
// recomputed forward pass agrees with the first one.
inline int64_t SlotOfRow(const ExpertPlacement& placement, int64_t layer,
                         int64_t expert, int64_t ep_rank, int64_t j) {
  const int64_t copies = placement.layers[layer].slot_count[expert];
  return placement.SlotOfCopy(layer, expert, (ep_rank + j) % copies);
}

// Builds all tables from slot_to_expert [L][slots]. INVALID_ARGUMENT when a
// size is off, an id is out of range or an expert of a layer has no slot.
absl::StatusOr<ExpertPlacement> MakePlacement(
    const PlacementShape& shape,
    const std::vector<std::vector<int32_t>>& slot_to_expert,
    int64_t plan_epoch);

// Experts in order, as even as possible: rank r holds experts
// [floor(r E / P), floor((r + 1) E / P)); spare slots stay empty. Epoch 0.
absl::StatusOr<ExpertPlacement> PlaceContiguous(const PlacementShape& shape);

struct PlaceOptions {
  PlacementShape shape;
  // Experts [g E/groups, (g + 1) E/groups) form routing group g and are kept on
  // one node if groups % nodes == 0. Otherwise, and with the defaults, the
  // global form is used (one group, one node).
  int64_t num_groups = 1;
  int64_t num_nodes = 1;
  // False: one copy of each expert, spare slots stay empty ("greedy": trained
  // experts whose replicas would cost too much). True: EPLB, all slots filled.
  bool replicate = true;
  int64_t plan_epoch = 0;
};

// DeepSeek's expert-parallel load balancer, per layer:
//   1. pack the groups to the nodes by summed load;
//   2. inside a node give a copy to argmax(load / copies) until its slots are
//      full (or leave them empty, see `replicate`);
//   3. pack the copies, each with load / copies, to the node's ranks.
// pack: sort descending; each item goes to the least loaded bin with room,
// exactly items/bins per bin; with one item per bin the order is kept.
// Ties: lower index first, for items, bins and argmax.
// Requires E % groups == 0, slots % ranks == 0, ranks % nodes == 0, slots >= E
// and finite loads >= 0 (INVALID_ARGUMENT).
absl::StatusOr<ExpertPlacement> Place(const ExpertLoads& loads,
                                      const PlaceOptions& options);

// What a new placement should be when `candidate` (same shape) is on offer and
// `current` is in force, with the fewest moved experts: a layer whose highest
// rank load would not fall keeps its current slots; in the others, ranks of one
// node are renamed and slots of one rank reordered so that experts stay where
// they are as far as possible. No rank load of the candidate changes but for
// the renaming. The epoch is the candidate's.
absl::StatusOr<ExpertPlacement> KeepInPlace(const ExpertPlacement& current,
                                            const ExpertPlacement& candidate,
                                            const ExpertLoads& loads,
                                            int64_t num_nodes);

// Rows per rank [P] of one layer when an expert's rows split evenly over its
// copies.
std::vector<double> RankLoads(const ExpertPlacement& placement, int64_t layer,
                              const std::vector<double>& load);

// mean / max rank load of one layer; 1 without any load.
double LayerBalancedness(const ExpertPlacement& placement, int64_t layer,
                         const std::vector<double>& load);
// Of a step: sum over layers of the mean / sum over layers of the max.
double Balancedness(const ExpertPlacement& placement, const ExpertLoads& loads);

}  // namespace cadre

#endif  // CADRE_PLAN_EXPERT_PLACEMENT_H_
