#ifndef CADRE_MODEL_LORA_TARGETS_H_
#define CADRE_MODEL_LORA_TARGETS_H_

// Which modules an adapter changes: job-file options and a ModelSpec become a
// LoraPlan, or an error that lists what the model has. Pure; plain values.
//
// y = x W^T + scale (x A^T) B^T per adapted module.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model_spec.h"

namespace cadre {

struct LoraOptions {
  int64_t rank = 16;
  double alpha = 32.0;
  bool rslora = false;  // scale alpha / sqrt(rank) instead of alpha / rank
  double dropout = 0.0;
  // True: gate and up of an expert share one A, as PEFT's fused form does.
  bool shared_gate_up = false;
  // Last names ("q_proj"), full paths, globs over paths or names ("*_b_proj",
  // "model.layers.[0-3].self_attn.*"), "expert_gate" (the router matrix),
  // "experts" (all routed experts), "mlp.experts.gate_up_proj",
  // "mlp.experts.down_proj", and the groups "attention" (every Linear of the
  // token mixers) and "all-linear" (every Linear, the experts, not the router).
  std::vector<std::string> targets = {"q_proj", "v_proj"};
};

enum class LoraModuleKind {
  kLinear,
  kRouter,        // mlp.gate.weight [E, H]
  kExpertGate,    // per expert [I, in]
  kExpertUp,      // per expert [I, in]
  kExpertGateUp,  // per expert [2I, in], one A for both halves
  kExpertDown,    // per expert [in, I]
};

constexpr bool IsExpertKind(LoraModuleKind kind) {
  return kind != LoraModuleKind::kLinear && kind != LoraModuleKind::kRouter;
}

struct LoraModule {
  // Logical path: "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.gate",
  // "model.layers.1.mlp.experts.{gate_proj,up_proj,gate_up_proj,down_proj}".
  std::string path;
  LoraModuleKind kind = LoraModuleKind::kLinear;
  int layer = 0;
  int64_t in = 0, out = 0;  // of one expert for expert kinds
  int64_t num_experts = 0;  // 0: not an expert kind
  int64_t rank = 0;
  double alpha = 0.0;
  double scale = 0.0;

  // A is [rank, in] and B [out, rank]; expert kinds [E, rank, in] and
  // [E, out, rank].
  std::vector<int64_t> a_shape() const;
  std::vector<int64_t> b_shape() const;
  // Parameter names: path + ".lora_A" / ".lora_B".
  std::string a_name() const { return path + ".lora_A"; }
  std::string b_name() const { return path + ".lora_B"; }
  int64_t num_parameters() const;
};

// How often a target matches in layers of one kind ("kda", "mla", "dsa", "gdn",
// "gqa", "dense_mlp", "moe").
struct LoraTargetMatch {
  std::string target;
  std::string layer_kind;
  int64_t num_modules = 0;
  std::vector<int> layers;
};

struct LoraPlan {
  int64_t rank = 0;
  double alpha = 0.0;
  bool rslora = false;
  double dropout = 0.0;
  std::vector<LoraModule> modules;  // model order, each once
  // Targets in the order given; kinds in the order they first occur.
  std::vector<LoraTargetMatch> matches;
  // "q_proj matches no module of the 24 mla layers", ...
  std::vector<std::string> warnings;

  int64_t num_parameters() const;
  // Null when the module is not adapted.
  const LoraModule* Find(absl::string_view path) const;
};

// INVALID_ARGUMENT for an unknown, unreachable or indexer target, rank < 1,
// alpha <= 0 or dropout outside [0, 1).
absl::StatusOr<LoraPlan> PlanLora(const ModelSpec& spec,
                                  const LoraOptions& options);

// Names a job file may use for this model, sorted; no groups, paths or globs.
std::vector<std::string> LoraTargetNames(const ModelSpec& spec);

// alpha / rank, or alpha / sqrt(rank).
double LoraScale(double alpha, int64_t rank, bool rslora);

}  // namespace cadre

#endif  // CADRE_MODEL_LORA_TARGETS_H_
