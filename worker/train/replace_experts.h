#ifndef CADRE_WORKER_TRAIN_REPLACE_EXPERTS_H_
#define CADRE_WORKER_TRAIN_REPLACE_EXPERTS_H_

// Moves the routed experts of a model in training to another placement: weights
// and adapters, and the optimizer's state, of which every expert replica keeps
// a part. Free functions; collective over the mesh.

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "plan/expert_placement.h"
#include "worker/model/model.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/optimizer.h"
#include "worker/train/trainer.h"

namespace cadre {

// Between two steps, when the copies of every expert are equal. Afterwards `to`
// is in force in the model. Returns the bytes received or sent by the busiest
// rank. INVALID_ARGUMENT for another shape, ABORTED where the ranks do not hold
// the same placements (nothing has moved then).
absl::StatusOr<int64_t> ReplaceExperts(const Exec& exec, Model* model,
                                       Optimizer* optimizer,
                                       const MeshCommunicators& communicators,
                                       const ExpertPlacement& to);

// Of one expert of one layer; zeros where they are not spread over ranks.
ExpertSize SizeOfExpert(const Model& model, const Optimizer& optimizer);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_REPLACE_EXPERTS_H_
