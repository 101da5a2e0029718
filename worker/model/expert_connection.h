#ifndef CADRE_WORKER_MODEL_EXPERT_CONNECTION_H_
#define CADRE_WORKER_MODEL_EXPERT_CONNECTION_H_

// How a model whose experts lie on several ranks finds the others. Stateless.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/model.h"
#include "worker/moe/expert_runtime.h"

namespace cadre {

// INVALID_ARGUMENT where the placement in `options` is for a model of another
// shape.
absl::Status CheckExpertParallel(const ModelSpec& spec,
                                 const ModelOptions& options);

// What its layers exchange rows with; null where all experts are here. INTERNAL
// where the groups are not those that `options` speak of. The groups'
// communicators must outlive it.
absl::StatusOr<std::unique_ptr<ExpertRuntime>> ConnectExperts(
    const ModelOptions& options, const ModelGroups& groups);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_EXPERT_CONNECTION_H_
