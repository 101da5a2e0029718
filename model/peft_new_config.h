#ifndef CADRE_MODEL_PEFT_NEW_CONFIG_H_
#define CADRE_MODEL_PEFT_NEW_CONFIG_H_

// adapter_config.json of an adapter that was not imported: target lists and
// patterns as PEFT would have them, derived from the plan. Pure.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/lora_modules.h"
#include "model/model_spec.h"
#include "model/peft_adapter.h"

namespace cadre {

inline bool IsFused(const PeftAdapter& adapter) {
  return adapter.layout == ExpertLayout::kFused;
}

// What the plan's modules are called by PEFT.
class PeftNames {
 public:
  PeftNames(const PeftAdapter& adapter, const ModelSpec& spec)
      : fused_(IsFused(adapter)), all_(AdaptableModules(spec, fused_)) {
    for (const AdaptableModule& entry : all_) {
      by_path_.emplace(entry.module.path, &entry);
    }
    for (const LoraModule& module : adapter.plan.modules) {
      adapted_.insert(module.path);
    }
  }

  // Null when the model has no such module.
  const AdaptableModule* Find(const std::string& path) const {
    const auto it = by_path_.find(path);
    return it == by_path_.end() ? nullptr : it->second;
  }
  bool IsAdapted(const AdaptableModule& entry) const {
    return adapted_.count(entry.module.path) != 0;
  }
  const std::vector<AdaptableModule>& all() const { return all_; }

  // Every module that `filter` takes is adapted.
  bool AllAdapted(
      const std::function<bool(const AdaptableModule&)>& filter) const {
    return std::all_of(all_.begin(), all_.end(),
                       [&](const AdaptableModule& entry) {
                         return !filter(entry) || IsAdapted(entry);
                       });
  }

 private:
  const bool fused_;
  const std::vector<AdaptableModule> all_;
  std::map<std::string, const AdaptableModule*> by_path_;
  std::set<std::string> adapted_;
};

std::string NewPeftConfig(const PeftAdapter& adapter, const PeftNames& names);

}  // namespace cadre

#endif  // CADRE_MODEL_PEFT_NEW_CONFIG_H_
