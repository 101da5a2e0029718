#ifndef CADRE_MODEL_LORA_MODULES_H_
#define CADRE_MODEL_LORA_MODULES_H_

// Every module of a model that LoRA could adapt, in model order; what target
// lists choose from and adapter files are matched with. Pure.

#include <string>
#include <vector>

#include "model/lora_targets.h"
#include "model/model_spec.h"

namespace cadre {

struct AdaptableModule {
  LoraModule module;  // rank, alpha and scale are not set
  // The module as PEFT names it. Linear and router: the path of the module.
  // Expert kinds: the path of the fused experts, "...mlp.experts".
  std::string peft_path;
  // Last component for a Linear; for expert kinds the name of one expert's
  // Linear ("gate_proj", "w1"; for gate and up together that of gate).
  std::string name;
  std::string layer_kind;  // "kda", ..., "dense_mlp", "moe"
  bool is_mixer = false;
  bool can_have_gradient = true;
};

// `shared_gate_up`: gate and up of the experts are one module.
std::vector<AdaptableModule> AdaptableModules(const ModelSpec& spec,
                                              bool shared_gate_up);

}  // namespace cadre

#endif  // CADRE_MODEL_LORA_MODULES_H_
