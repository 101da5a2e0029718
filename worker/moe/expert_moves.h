#ifndef CADRE_WORKER_MOE_EXPERT_MOVES_H_
#define CADRE_WORKER_MOE_EXPERT_MOVES_H_

// What ranks that share one copy of the experts exchange between steps: sums
// and values of spare copies (parallelism.md section 8.7), and experts that
// change slots (8.6). Collective over the group; tensors of the exec. Plain
// functions.

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/model/parameters.h"
#include "worker/moe/expert_parallel.h"

namespace cadre {

// An expert parameter of a model and its place among the MoE layers
// (Model::expert_parameters).
struct ExpertParameter {
  Parameter* parameter = nullptr;
  int layer = 0;
};

// After the last backward pass of a step and before sums over expert replicas:
// the gradient of a trained expert at its home slot is the sum over its copies,
// added in slot order; that of the other copies is zero, so that norms count an
// expert once. Does nothing without copies.
absl::Status SumCopiesAtHome(const Exec& exec, Communicator* group,
                             const ExpertParallel& experts,
                             absl::Span<const ExpertParameter> parameters);

// After the update: copies get the values of their home slot.
absl::Status SpreadFromHome(const Exec& exec, Communicator* group,
                            const ExpertParallel& experts,
                            absl::Span<const ExpertParameter> parameters);

// A tensor [slots per rank, ...] that follows the experts of a layer.
struct ExpertTensor {
  int layer = 0;  // among the MoE layers
  Tensor rows;
  // Optimizer state: right at the home slot only, kept zero elsewhere.
  bool home_only = false;
};

// Moves rows from the placement in force to `to`, layer by layer. All ranks
// must give the same placements (checked first: ABORTED, nothing is moved then)
// and the same list of tensors. Afterwards the caller publishes `to`
// (Model::SetPlacement). Never between a forward pass and the update.
absl::Status MoveExperts(const Exec& exec, Communicator* group,
                         const ExpertParallel& from, const ExpertPlacement& to,
                         absl::Span<const ExpertTensor> tensors);

// The values of every routed expert and its adapter, as MoveExperts takes them.
std::vector<ExpertTensor> ExpertValues(
    absl::Span<const ExpertParameter> parameters);

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_EXPERT_MOVES_H_
