#include "worker/model/layer_builder.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// Stable over runs and machines (std::hash is not promised to be).
uint64_t HashName(const std::string& name) {
  uint64_t h = 0xCBF29CE484222325ULL;  // FNV-1a
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3ULL;
  return h;
}

}  // namespace

absl::StatusOr<Parameter*> LayerBuilder::Param(const std::string& name) const {
  Parameter* parameter = registry_->Find(absl::StrCat(prefix_, name));
  if (parameter != nullptr) return parameter;
  return absl::InternalError(
      absl::StrCat("the model has no parameter ", prefix_, name));
}

bool LayerBuilder::Has(const std::string& name) const {
  return registry_->Find(absl::StrCat(prefix_, name)) != nullptr;
}

absl::StatusOr<Linear> LayerBuilder::MakeLinear(const std::string& name) const {
  CADRE_ASSIGN_OR_RETURN(Parameter * weight,
                         Param(absl::StrCat(name, ".weight")));
  CADRE_ASSIGN_OR_RETURN(LoraBranch lora, Adapter(name));
  return Linear(weight, lora);
}

absl::StatusOr<LoraBranch> LayerBuilder::Adapter(
    const std::string& name) const {
  LoraBranch branch;
  if (lora_ == nullptr) return branch;
  const LoraModule* module = lora_->Find(absl::StrCat(prefix_, name));
  if (module == nullptr) return branch;
  branch.a = registry_->Find(module->a_name());
  branch.b = registry_->Find(module->b_name());
  if (branch.a == nullptr || branch.b == nullptr) {
    return absl::InternalError(
        absl::StrCat("the adapter of ", module->path, " has no parameters"));
  }
  branch.scale = module->scale;
  branch.dropout = lora_->dropout;
  branch.id = HashName(module->path);
  return branch;
}

}  // namespace cadre
