#include "worker/shard/model_layout.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {

PlacementShape ExpertSlots(const ModelSpec& spec, const Mesh& mesh,
                           int64_t spare_slots_per_rank) {
  PlacementShape shape{.num_ranks = mesh.spec().expert_parallel_size};
  if (shape.num_ranks == 1) return shape;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      ++shape.num_layers;
      shape.num_experts = moe->num_experts;
    }
  }
  // Where the ranks do not divide the experts, the last slots stay empty.
  shape.slots_per_rank =
      (shape.num_experts + shape.num_ranks - 1) / shape.num_ranks +
      spare_slots_per_rank;
  return shape;
}

absl::Status PlaceModel(const ModelSpec& spec, const Mesh& mesh, int rank,
                        ModelOptions* options, const InitialExperts& experts) {
  const MeshCoordinates at = mesh.Coordinates(rank);
  options->dense_sharding = {.num_shards = mesh.spec().fsdp_shard_group_size,
                             .shard = at.shard};
  options->expert_parallel.reset();
  const PlacementShape shape =
      ExpertSlots(spec, mesh, experts.spare_slots_per_rank);
  if (shape.num_ranks == 1) return absl::OkStatus();
  int64_t top_k = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) top_k = moe->top_k;
  }
  CADRE_RETURN_IF_ERROR(
      ValidateExpertMesh(mesh, shape.num_experts, top_k, shape.num_slots()));
  ExpertParallel& where =
      options->expert_parallel.emplace(ExpertParallel{.rank = at.ep});
  if (experts.placement == nullptr) {
    CADRE_ASSIGN_OR_RETURN(where.placement, PlaceContiguous(shape));
    return absl::OkStatus();
  }
  const PlacementShape& given = experts.placement->shape;
  if (!(given == shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert placement ", experts.placement->plan_epoch, " is for ",
        given.num_layers, " layers of ", given.num_experts, " experts on ",
        given.num_ranks, " ranks with ", given.slots_per_rank,
        " slots; the model on this mesh has ", shape.num_layers, ", ",
        shape.num_experts, ", ", shape.num_ranks, " and ",
        shape.slots_per_rank));
  }
  where.placement = *experts.placement;
  return absl::OkStatus();
}

}  // namespace cadre
