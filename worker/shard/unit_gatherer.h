#ifndef CADRE_WORKER_SHARD_UNIT_GATHERER_H_
#define CADRE_WORKER_SHARD_UNIT_GATHERER_H_

// Moves dense units between their slices and use (parallelism.md section 3). A
// unit is sharded -> gathering -> ready -> in use -> sharded again. While one
// unit is in use, a thread of its own gathers the next beside it, into memory
// of the largest two neighbours. When the backward pass of a trained unit ends,
// its gradients are summed over the shard group and this rank's slice is added
// to what earlier micro-batches left.
//
// One training thread; the units must outlive it. Errors of a collective end
// the step: after one, only destruction is left.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/model/dense_units.h"
#include "worker/shard/owned_slice.h"

namespace cadre {

struct UnitGroups {
  Communicator* gather = nullptr;   // the shard group, used by its thread alone
  Communicator* shard = nullptr;    // the same ranks, for this thread
  Communicator* replica = nullptr;  // ranks with the same slice; null: none
  // One of the replicas counts the slice in norms and saves it.
  bool counted = true;
};

class UnitGatherer : public UnitAccess {
 public:
  static absl::StatusOr<std::unique_ptr<UnitGatherer>> Create(
      const DenseUnits* units, const UnitGroups& groups);

  virtual absl::Status ZeroGradients() = 0;
  // Sums the slices' gradients over the replicas; once a step.
  virtual absl::Status ReduceGradients() = 0;
  // This rank's slices of trained parameters.
  virtual std::vector<OwnedSlice> Owned() const = 0;

  struct Memory {
    int64_t slices = 0;     // of the values
    int64_t gradients = 0;  // of their slices
    int64_t gather = 0;     // units in use
    int64_t reduce = 0;     // a whole unit's gradients and its slice
  };
  virtual Memory memory() const = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_UNIT_GATHERER_H_
