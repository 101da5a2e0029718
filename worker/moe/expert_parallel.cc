#include "worker/moe/expert_parallel.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {

absl::StatusOr<ExpertSlots> ExpertSlots::Create(int64_t num_experts,
                                                std::vector<int32_t> slots) {
  ExpertSlots out;
  out.slot_to_expert = std::move(slots);
  out.expert_to_slots.resize(num_experts);
  for (size_t slot = 0; slot < out.slot_to_expert.size(); ++slot) {
    const int32_t expert = out.slot_to_expert[slot];
    if (expert < 0 || expert >= num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("placing experts: slot ", slot, " holds expert ", expert,
                       ", the layer has experts 0 to ", num_experts - 1));
    }
    out.expert_to_slots[expert].push_back(static_cast<int32_t>(slot));
  }
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    if (out.expert_to_slots[expert].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("placing experts: expert ", expert, " has none of the ",
                       out.slot_to_expert.size(), " slots"));
    }
  }
  return out;
}

absl::StatusOr<ExpertParallel> ExpertParallel::Contiguous(int rank, int size,
                                                          int64_t num_layers,
                                                          int64_t num_experts) {
  if (size < 1 || num_experts % size != 0 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "placing ", num_experts, " experts on rank ", rank, " of ", size,
        " expert-parallel ranks: the ranks must divide the experts; give the "
        "layer spare slots or choose another "
        "parallelism.expert_parallel_size"));
  }
  ExpertParallel out{.rank = rank, .size = size};
  std::vector<int32_t> slots(num_experts);
  std::iota(slots.begin(), slots.end(), 0);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    CADRE_ASSIGN_OR_RETURN(ExpertSlots placed,
                           ExpertSlots::Create(num_experts, slots));
    out.layers.push_back(std::move(placed));
  }
  return out;
}

}  // namespace cadre
