#ifndef CADRE_WORKER_MOE_EXPERT_PARALLEL_H_
#define CADRE_WORKER_MOE_EXPERT_PARALLEL_H_

// Where the routed experts of a model lie in one group of expert-parallel
// ranks, and which of them are here. Logical expert = index in the model; slot
// = position in the group, slot = rank x slots_per_rank + local. Plain values;
// owns nothing.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

// The slots of one MoE layer.
struct ExpertSlots {
  // The expert of each slot of the group. Every expert has at least one.
  std::vector<int32_t> slot_to_expert;
  // The inverse: slots of expert e, ascending; the first is its home.
  std::vector<std::vector<int32_t>> expert_to_slots;

  // INVALID_ARGUMENT for an expert out of range or without a slot.
  static absl::StatusOr<ExpertSlots> Create(int64_t num_experts,
                                            std::vector<int32_t> slots);
  int64_t num_experts() const {
    return static_cast<int64_t>(expert_to_slots.size());
  }
  int64_t num_slots() const {
    return static_cast<int64_t>(slot_to_expert.size());
  }
};

// A model's experts on the ranks of one group. The same on every rank but for
// `rank`.
struct ExpertParallel {
  int rank = 0;
  int size = 1;
  int64_t epoch = 0;                // of the plan
  std::vector<ExpertSlots> layers;  // MoE layers in model order

  // Expert e in slot e: slots_per_rank = num_experts / size.
  static absl::StatusOr<ExpertParallel> Contiguous(int rank, int size,
                                                   int64_t num_layers,
                                                   int64_t num_experts);
  int64_t slots_per_rank(int layer) const {
    return layers[layer].num_slots() / size;
  }
};

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_EXPERT_PARALLEL_H_
