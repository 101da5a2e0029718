#ifndef CADRE_WORKER_MODEL_BLOCK_FACTORY_H_
#define CADRE_WORKER_MODEL_BLOCK_FACTORY_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"
#include "worker/model/block.h"
#include "worker/model/parameters.h"

namespace cadre {

// The blocks of a model on the parameters of `registry`, which must outlive
// them. `lora` may be null.
absl::StatusOr<std::vector<std::unique_ptr<Block>>> MakeBlocks(
    const ModelSpec& spec, ParameterRegistry* registry, const LoraPlan* lora);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_BLOCK_FACTORY_H_
