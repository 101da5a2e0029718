#include "worker/model/parameters.h"

#include "base/logging.h"

namespace cadre {

Parameter* ParameterRegistry::Add(Parameter parameter) {
  storage_.push_back(std::move(parameter));
  Parameter* added = &storage_.back();
  if (added->global_shape.empty()) {
    const auto dims = added->value.dims();
    added->global_shape.assign(dims.begin(), dims.end());
  }
  CADRE_CHECK(by_name_.emplace(added->name, added).second)
      << "parameter " << added->name << " is there twice";
  order_.push_back(added);
  return added;
}

Parameter* ParameterRegistry::Find(absl::string_view name) {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : it->second;
}

std::vector<Parameter*> ParameterRegistry::Trainable() const {
  std::vector<Parameter*> out;
  for (Parameter* parameter : order_) {
    if (parameter->trainable) out.push_back(parameter);
  }
  return out;
}

}  // namespace cadre
