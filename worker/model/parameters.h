#ifndef CADRE_WORKER_MODEL_PARAMETERS_H_
#define CADRE_WORKER_MODEL_PARAMETERS_H_

// Every tensor of a model or an adapter under its logical name: what it is, who
// owns it in the mesh, whether it is trained. Optimizer, sharding, checkpoints
// and exports work on this list and know no model type.

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Which group a parameter's gradient is summed over (parallelism.md section 2).
enum class ParamDomain {
  kDense,   // summed over all ranks
  kExpert,  // routed experts: leading dim is the expert; summed over EDP only
};

// A row of a tensor's leading dim that this rank holds.
struct HeldRow {
  // Of the whole tensor: the logical expert; -1: an empty slot, all zero.
  int64_t index = 0;
  // Among all copies of the row in one group of ranks that share the experts,
  // exactly one is home: the lowest slot. It alone counts in the gradient norm,
  // owns optimizer state and is saved and exported. False for a spare copy and
  // an empty slot.
  bool home = true;
};

struct Parameter {
  // Reference name (models.md 1.2), e.g.
  // "model.layers.1.mlp.experts.down_proj", or for adapters "<module>.lora_A" /
  // "<module>.lora_B".
  std::string name;
  ParamDomain domain = ParamDomain::kDense;
  bool is_adapter = false;
  // Frozen parameters have an absent grad. A parameter that can never have a
  // gradient (models.md 1, "No gradient, ever") is always frozen.
  bool trainable = false;
  // Of the whole logical tensor, whatever part of it this rank holds. Names,
  // seeds, checkpoints and exports go by it.
  std::vector<int64_t> global_shape;
  // Empty: value is the whole tensor. Otherwise value is [rows.size(), ...] and
  // its row i is row rows[i].index of the whole tensor; an index may occur
  // twice (spare copies). Changes only between steps (Model::SetPlacement).
  std::vector<HeldRow> rows;
  // The unit that shares it out over ranks (dense_units.h); -1: it is here.
  int unit = -1;
  // What the model computes with; where the model's exec is.
  Tensor value;
  // Same shape, f32 beside bf16; the model adds into it; the caller zeroes it.
  Tensor grad;
};

class ParameterRegistry {
 public:
  // Pointers stay valid for the registry's life. CADRE_CHECKs that the name is
  // new.
  Parameter* Add(Parameter parameter);
  // Null when there is none.
  Parameter* Find(absl::string_view name);
  const std::vector<Parameter*>& all() const { return order_; }
  // In the order of Add: the same on every rank.
  std::vector<Parameter*> Trainable() const;

 private:
  std::deque<Parameter> storage_;
  std::vector<Parameter*> order_;
  std::map<std::string, Parameter*, std::less<>> by_name_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PARAMETERS_H_
