#ifndef CADRE_WORKER_SHARD_MODEL_SHARDS_H_
#define CADRE_WORKER_SHARD_MODEL_SHARDS_H_

// How one rank's parameters take part in the mesh (parallelism.md sections 2
// and 3): which gradients are summed over which group, which elements this rank
// updates, how updated values reach the others. Sums only; nothing is averaged.
//
//   trained parameters        summed over                    updated by
//   units (full tuning, S>1)  shard group (reduce-scatter,   their shard
//                             per unit), replica group
//   dense, resident           shard group, replica group     slices of the lane
//   routed experts            expert replicas (EDP)          slices of the lane
//
// Dense and resident are LoRA adapters of the dense part and, with S = 1, the
// whole dense base. Not thread-safe; model and communicators must outlive it.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/owned_slice.h"
#include "worker/shard/parameter_lane.h"
#include "worker/shard/unit_gatherer.h"

namespace cadre {

class ModelShards {
 public:
  static absl::StatusOr<std::unique_ptr<ModelShards>> Create(
      const Exec& exec, ParameterRegistry* parameters, const DenseUnits* units,
      const MeshCommunicators* communicators);

  // For Model::Connect; null without shards.
  UnitAccess* units() const { return gatherer_.get(); }

  // Of all trained parameters, before the first micro-batch of a step.
  absl::Status ZeroGradients();
  // After the last micro-batch: the owned slices hold the sums over all ranks.
  // Every rank calls it.
  absl::Status ReduceGradients();
  // After the update: every rank has all resident values again.
  absl::Status GatherValues();

  // What this rank updates: units first, dense lane, experts.
  const std::vector<OwnedSlice>& owned() const { return owned_; }

  struct Memory {
    int64_t weights = 0;    // values that are here, sharded ones as slices
    int64_t adapter = 0;    // of them, of adapters
    int64_t gradients = 0;  // of trained parameters
    int64_t gather = 0;     // both gather buffers
    int64_t reduce = 0;     // buffers of reductions
  };
  Memory memory() const;

 private:
  ModelShards(const Exec& exec, ParameterRegistry* parameters)
      : exec_(exec), parameters_(parameters) {}

  const Exec exec_;
  ParameterRegistry* const parameters_;
  std::unique_ptr<UnitGatherer> gatherer_;
  std::optional<ParameterLane> dense_, experts_;
  std::vector<OwnedSlice> owned_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_MODEL_SHARDS_H_
