#include "worker/shard/model_layout.h"

#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "plan/expert_placement.h"

namespace cadre {

absl::Status PlaceModel(const ModelSpec& spec, const Mesh& mesh, int rank,
                        ModelOptions* options) {
  const MeshCoordinates at = mesh.Coordinates(rank);
  options->dense_sharding = {.num_shards = mesh.spec().fsdp_shard_group_size,
                             .shard = at.shard};
  options->expert_parallel.reset();
  const int64_t ranks = mesh.spec().expert_parallel_size;
  if (ranks == 1) return absl::OkStatus();
  PlacementShape shape{.num_ranks = ranks};
  int64_t top_k = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      ++shape.num_layers;
      shape.num_experts = moe->num_experts;
      top_k = moe->top_k;
    }
  }
  // Where the ranks do not divide the experts, the last slots stay empty.
  shape.slots_per_rank = (shape.num_experts + ranks - 1) / ranks;
  CADRE_RETURN_IF_ERROR(
      ValidateExpertMesh(mesh, shape.num_experts, top_k, shape.num_slots()));
  CADRE_ASSIGN_OR_RETURN(ExpertPlacement placement, PlaceContiguous(shape));
  options->expert_parallel =
      ExpertParallel{.rank = at.ep, .placement = std::move(placement)};
  return absl::OkStatus();
}

}  // namespace cadre
