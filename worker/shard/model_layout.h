#ifndef CADRE_WORKER_SHARD_MODEL_LAYOUT_H_
#define CADRE_WORKER_SHARD_MODEL_LAYOUT_H_

// Which part of a model one rank of a mesh holds when a job starts. Pure.

#include "absl/status/status.h"
#include "model/model_spec.h"
#include "plan/expert_placement.h"
#include "plan/mesh.h"
#include "worker/model/model.h"

namespace cadre {

struct InitialExperts {
  int64_t spare_slots_per_rank = 0;
  // Null: in order, spare slots empty.
  const ExpertPlacement* placement = nullptr;
};

// Slots of all layers of the model on the mesh; no layers where its experts are
// not spread over ranks.
PlacementShape ExpertSlots(const ModelSpec& spec, const Mesh& mesh,
                           int64_t spare_slots_per_rank);

// Sets dense_sharding and expert_parallel (unset with one expert-parallel
// rank). INVALID_ARGUMENT when the mesh does not fit the model, or the
// placement neither.
absl::Status PlaceModel(const ModelSpec& spec, const Mesh& mesh, int rank,
                        ModelOptions* options,
                        const InitialExperts& experts = {});

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_MODEL_LAYOUT_H_
