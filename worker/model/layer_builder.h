#ifndef CADRE_WORKER_MODEL_LAYER_BUILDER_H_
#define CADRE_WORKER_MODEL_LAYER_BUILDER_H_

// Finds the parameters of one layer in the registry and binds adapters to its
// matrices. Names are relative to the layer: "self_attn.q_proj". An error here
// means that tensor_names and the runtime disagree: INTERNAL.

#include <string>

#include "absl/status/statusor.h"
#include "model/lora_targets.h"
#include "worker/model/linear.h"
#include "worker/model/parameters.h"

namespace cadre {

class LayerBuilder {
 public:
  // `lora` may be null. `prefix`: "model.layers.3.", or "" for absolute names.
  LayerBuilder(ParameterRegistry* registry, const LoraPlan* lora,
               std::string prefix)
      : registry_(registry), lora_(lora), prefix_(std::move(prefix)) {}

  absl::StatusOr<Parameter*> Param(const std::string& name) const;
  bool Has(const std::string& name) const;
  // The matrix name + ".weight" with its adapter, if it has one.
  absl::StatusOr<Linear> MakeLinear(const std::string& name) const;
  // The adapter of a module, e.g. "mlp.experts.down_proj"; null a: none.
  absl::StatusOr<LoraBranch> Adapter(const std::string& name) const;

 private:
  ParameterRegistry* registry_;
  const LoraPlan* lora_;
  std::string prefix_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_LAYER_BUILDER_H_
