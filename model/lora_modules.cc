#include "model/lora_modules.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

bool IsMixerPath(absl::string_view path) {
  return absl::StrContains(path, ".self_attn.") ||
         absl::StrContains(path, ".linear_attn.");
}

void AddMoe(const MoeModule& moe, bool shared_gate_up,
            std::vector<AdaptableModule>& modules) {
  const auto add = [&](const char* path, LoraModuleKind kind,
                       const std::string& name, int64_t in, int64_t out) {
    AdaptableModule entry;
    entry.module.path = absl::StrCat(moe.path, ".", path);
    entry.module.kind = kind;
    entry.module.layer = moe.layer;
    entry.module.in = in;
    entry.module.out = out;
    if (IsExpertKind(kind)) entry.module.num_experts = moe.num_experts;
    entry.peft_path =
        absl::StrCat(moe.peft_path, IsExpertKind(kind) ? ".experts" : ".gate");
    entry.name = name;
    entry.layer_kind = "moe";
    modules.push_back(std::move(entry));
  };
  add("gate", LoraModuleKind::kRouter, "gate", moe.router_in, moe.num_experts);
  if (shared_gate_up) {
    add("experts.gate_up_proj", LoraModuleKind::kExpertGateUp, moe.gate_name,
        moe.in, 2 * moe.width);
  } else {
    add("experts.gate_proj", LoraModuleKind::kExpertGate, moe.gate_name, moe.in,
        moe.width);
    add("experts.up_proj", LoraModuleKind::kExpertUp, moe.up_name, moe.in,
        moe.width);
  }
  add("experts.down_proj", LoraModuleKind::kExpertDown, moe.down_name,
      moe.width, moe.in);
}

}  // namespace

std::vector<AdaptableModule> AdaptableModules(const ModelSpec& spec,
                                              bool shared_gate_up) {
  std::vector<AdaptableModule> modules;
  const std::vector<MoeModule> moes = MoeModules(spec);
  size_t next_moe = 0;
  const auto add_moes_before = [&](int layer) {
    while (next_moe < moes.size() && moes[next_moe].layer < layer) {
      AddMoe(moes[next_moe++], shared_gate_up, modules);
    }
  };
  for (const LinearModule& linear : LinearModules(spec)) {
    add_moes_before(linear.layer);
    AdaptableModule entry;
    entry.module.path = linear.path;
    entry.module.layer = linear.layer;
    entry.module.in = linear.in;
    entry.module.out = linear.out;
    entry.peft_path = linear.peft_path;
    entry.name = linear.name;
    entry.is_mixer = IsMixerPath(linear.path);
    entry.can_have_gradient = linear.can_have_gradient;
    const BlockSpec& block = spec.blocks[linear.layer];
    entry.layer_kind =
        entry.is_mixer ? MixerKindName(block.mixer) : FfnKindName(block.ffn);
    modules.push_back(std::move(entry));
  }
  add_moes_before(static_cast<int>(spec.blocks.size()));
  return modules;
}

}  // namespace cadre
