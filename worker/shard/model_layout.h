#ifndef CADRE_WORKER_SHARD_MODEL_LAYOUT_H_
#define CADRE_WORKER_SHARD_MODEL_LAYOUT_H_

// Which part of a model one rank of a mesh holds when a job starts. Pure.

#include "absl/status/status.h"
#include "model/model_spec.h"
#include "plan/mesh.h"
#include "worker/model/model.h"

namespace cadre {

// Sets dense_sharding and expert_parallel (experts in order, no spare slots;
// unset with one expert-parallel rank). INVALID_ARGUMENT when the mesh does not
// fit the model.
absl::Status PlaceModel(const ModelSpec& spec, const Mesh& mesh, int rank,
                        ModelOptions* options);

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_MODEL_LAYOUT_H_
