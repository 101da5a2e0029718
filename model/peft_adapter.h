#ifndef CADRE_MODEL_PEFT_ADAPTER_H_
#define CADRE_MODEL_PEFT_ADAPTER_H_

// LoRA adapters as PEFT directories: adapter_config.json and
// adapter_model.safetensors. In memory an adapter is a LoraPlan and two float32
// arrays per module; routed experts are [E, r, in] and [E, out, r] whatever the
// file's layout. Plain values; functions are pure apart from the files.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/dtype.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"

namespace cadre {

// How routed experts lie in the file (parallelism.md section 12).
enum class ExpertLayout {
  // ...mlp.experts.E.{gate,up,down}_proj.lora_{A,B}.weight, 2-D
  kPerExpert,
  // ...mlp.experts[.base_layer].lora_{A,B}.weight, PEFT's ParamWrapper
  kFused,
};

struct AdapterWeights {
  std::vector<float> a, b;  // LoraModule::a_shape(), b_shape()
};

// A tensor of a module we do not train (vision), kept as it was.
struct SkippedAdapterTensor {
  std::string name;  // whole key
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

struct PeftAdapter {
  LoraPlan plan;
  std::vector<AdapterWeights> weights;  // parallel to plan.modules
  ExpertLayout layout = ExpertLayout::kPerExpert;
  // dtype of the tensors in the file.
  DType dtype = DType::kF32;
  // adapter_config.json as read, written back unchanged; empty for a new
  // adapter, whose config is derived from the plan.
  std::string config_json;
  std::string base_model_name_or_path, revision;  // new adapters only
  // Written back unchanged.
  std::vector<SkippedAdapterTensor> skipped;
};

// Above this many expert tensors `auto` switches from per expert to fused.
inline constexpr int64_t kMaxPerExpertTensors = 60'000;

// The layout a new adapter gets: per expert up to kMaxPerExpertTensors tensors,
// else fused. One A for gate and up is kept as one in the fused form only, so
// such an adapter gets that.
ExpertLayout DefaultExpertLayout(const LoraPlan& plan);

// Reads `dir` for the model. INVALID_ARGUMENT for what we do not implement
// (DoRA, biases, modules_to_save, unknown non-default fields), for tensors that
// do not fit the model and for target lists that do not fit the tensors;
// DATA_LOSS for a damaged file.
absl::StatusOr<PeftAdapter> ReadPeftAdapter(const std::string& dir,
                                            const ModelSpec& spec);

// Writes the two files into `dir` (created if need be), each atomically, the
// config last. Reading a directory and writing it gives the same bytes.
absl::Status WritePeftAdapter(const PeftAdapter& adapter, const ModelSpec& spec,
                              const std::string& dir);

// The same adapter in the other layout. Per expert -> fused: gate and up become
// one adapter of doubled rank with A stacked and B block-diagonal. Fused -> per
// expert: both halves get a copy of A. The config is derived anew.
// INVALID_ARGUMENT where the scales of gate and up differ.
absl::StatusOr<PeftAdapter> ConvertExpertLayout(const PeftAdapter& adapter,
                                                ExpertLayout layout);

}  // namespace cadre

#endif  // CADRE_MODEL_PEFT_ADAPTER_H_
