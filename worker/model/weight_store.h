#ifndef CADRE_WORKER_MODEL_WEIGHT_STORE_H_
#define CADRE_WORKER_MODEL_WEIGHT_STORE_H_

// The memory of a model's parameters and gradients, and what first fills it.
// Owns it; the registry views it. Not thread-safe.

#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"
#include "worker/device/host_buffer.h"
#include "worker/model/parameters.h"

namespace cadre {

class WeightStore {
 public:
  // With `lora`, the base is frozen and has no gradients; without, everything
  // that can have a gradient is trained.
  WeightStore(const ModelSpec& spec, const LoraPlan* lora, DType dtype);

  ParameterRegistry& registry() { return registry_; }

  // Every base tensor from the directory.
  absl::Status Load(const ModelDir& dir);
  // Every base tensor at random: matrices normal with deviation 0.02, norms one
  // (zero where the model adds one), decays spread as the architectures' own
  // initialisation does.
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
