#ifndef CADRE_WORKER_MODEL_WEIGHT_STORE_H_
#define CADRE_WORKER_MODEL_WEIGHT_STORE_H_

// The memory of a model's parameters and gradients, and what first fills it.
// Owns it; the registry views it. Not thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"
#include "worker/device/buffer.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"
#include "worker/moe/expert_moves.h"
#include "worker/moe/expert_parallel.h"

namespace cadre {

// What the slots of experts.rank in MoE layer `layer` hold: the rows of its
// expert parameters.
std::vector<HeldRow> HeldExperts(const ExpertParallel& experts, int layer);

class WeightStore {
 public:
  // With `lora`, the base is frozen and has no gradients; without, everything
  // that can have a gradient is trained. With `experts`, of the routed experts
  // and their adapters only the rows of the slots of its rank have memory. With
  // more than one shard, of the dense base only this rank's slices have.
  // `spec` must outlive it.
  WeightStore(const Exec& exec, const ModelSpec& spec, const LoraPlan* lora,
              DType dtype, const ExpertParallel* experts = nullptr,
              const DenseSharding& sharding = {});
  // Memory for all of it, zeroed; before anything else. RESOURCE_EXHAUSTED
  // names the tensor that did not fit.
  absl::Status Allocate();

  ParameterRegistry& registry() { return registry_; }
  // Of parameters whose rows are experts of this rank; in the registry's order.
  const std::vector<ExpertParameter>& experts() const { return experts_; }
  // The shards: the embedding, one unit per layer, the head (in the embedding's
  // unit where they are one tensor). None without sharding.
  const DenseUnits& units() const { return units_; }

  // What this rank holds of every base tensor of the directory.
  absl::Status Load(const ModelDir& dir);
  // Every base tensor at random: matrices normal with deviation 0.02, norms one
  // (zero where the model adds one), decays spread as the architectures' own
  // initialisation does. A value depends on the seed, the tensor's name and its
  // place in the whole tensor, not on which rows are held; so do adapters'.
  absl::Status InitBase(const ModelSpec& spec, uint64_t seed);
  // A uniform in +-1/sqrt(in), B = 0.
  absl::Status InitAdapter(uint64_t seed);

 private:
  // Fills `part` of the parameter's master from the host's generator.
  absl::Status Fill(const Tensor& part, const std::function<double()>& value);
  // The same with the default distribution of matrices.
  absl::Status FillNormal(const Tensor& part, const std::string& name,
                          uint64_t seed, int64_t expert);
  absl::Status AllocateOne(Parameter* parameter);
  absl::Status MakeUnits();
  // Where the full value of a base parameter is written: its own memory, or
  // room that Keep() takes this rank's part from.
  absl::StatusOr<Tensor> Whole(const Parameter& parameter);
  // What was written to Whole() becomes the parameter's value.
  absl::Status Keep(const Parameter& parameter, const Tensor& whole);

  const Exec exec_;
  const ModelSpec& spec_;
  std::vector<LogicalTensor> base_;
  std::deque<Buffer> buffers_;
  ParameterRegistry registry_;
  std::vector<ExpertParameter> experts_;
  DenseUnits units_;
  Buffer whole_;  // of a sharded tensor, while values come in
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_WEIGHT_STORE_H_
