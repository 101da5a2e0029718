#include "plan/placement_proto.h"

#include <vector>

namespace cadre {

v1::ExpertPlacement ToProto(const ExpertPlacement& placement,
                            int64_t attempt_epoch) {
  v1::ExpertPlacement proto;
  proto.set_plan_epoch(placement.plan_epoch);
  proto.set_attempt_epoch(attempt_epoch);
  const PlacementShape& shape = placement.shape;
  proto.set_num_experts(static_cast<int32_t>(shape.num_experts));
  proto.set_num_ranks(static_cast<int32_t>(shape.num_ranks));
  proto.set_slots_per_rank(static_cast<int32_t>(shape.slots_per_rank));
  for (const LayerPlacement& layer : placement.layers) {
    auto& slots = *proto.add_layers()->mutable_slot_to_expert();
    slots.Assign(layer.slot_to_expert.begin(), layer.slot_to_expert.end());
  }
  return proto;
}

absl::StatusOr<ExpertPlacement> FromProto(const v1::ExpertPlacement& proto) {
  const PlacementShape shape = {.num_layers = proto.layers_size(),
                                .num_experts = proto.num_experts(),
                                .num_ranks = proto.num_ranks(),
                                .slots_per_rank = proto.slots_per_rank()};
  std::vector<std::vector<int32_t>> slots;
  for (const auto& layer : proto.layers()) {
    slots.emplace_back(layer.slot_to_expert().begin(),
                       layer.slot_to_expert().end());
  }
  return MakePlacement(shape, slots, proto.plan_epoch());
}

}  // namespace cadre
