#ifndef CADRE_WORKER_MODEL_WEIGHT_STORE_H_
#define CADRE_WORKER_MODEL_WEIGHT_STORE_H_

// The memory of a model's parameters and gradients, and what first fills it.
// Owns it; the registry views it. Not thread-safe.

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"
#include "worker/device/host_buffer.h"
#include "worker/model/parameters.h"
#include "worker/moe/expert_parallel.h"

namespace cadre {

// What the slots of experts.rank in MoE layer `layer` hold: the rows of its
// expert parameters.
std::vector<HeldRow> HeldExperts(const ExpertParallel& experts, int layer);

class WeightStore {
 public:
  // With `lora`, the base is frozen and has no gradients; without, everything
  // that can have a gradient is trained. With `experts`, of the routed experts
  // and their adapters only the rows of the slots of its rank have memory.
  WeightStore(const ModelSpec& spec, const LoraPlan* lora, DType dtype,
              const ExpertParallel* experts = nullptr);

  ParameterRegistry& registry() { return registry_; }

  // What this rank holds of every base tensor of the directory.
  absl::Status Load(const ModelDir& dir);
  // Every base tensor at random: matrices normal with deviation 0.02, norms one
  // (zero where the model adds one), decays spread as the architectures' own
  // initialisation does. A value depends on the seed, the tensor's name and its
  // place in the whole tensor, not on which rows are held; so do adapters'.
  void InitBase(const ModelSpec& spec, uint64_t seed);
  // A uniform in +-1/sqrt(in), B = 0.
  void InitAdapter(uint64_t seed);

 private:
  Tensor NewTensor(absl::Span<const int64_t> dims);

  DType dtype_;
  std::vector<LogicalTensor> base_;
  std::deque<HostBuffer> buffers_;
  ParameterRegistry registry_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_WEIGHT_STORE_H_
