// Conversion between the two layouts of routed experts.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/peft_adapter.h"

namespace cadre {
namespace {

struct Adapted {
  LoraModule module;
  AdapterWeights weights;
};

std::string WithLastName(const std::string& path, const char* name) {
  return path.substr(0, path.rfind('.') + 1) + name;
}

// Alpha that keeps `scale` under another rank.
double AlphaFor(const LoraModule& module, int64_t rank, bool rslora) {
  const double r = static_cast<double>(rank);
  return rslora ? module.scale * std::sqrt(r)
                : module.alpha * r / static_cast<double>(module.rank);
}

// One half of a fused module: the same A, rows [begin, end) of B.
Adapted Half(const Adapted& fused, LoraModuleKind kind, const char* name,
             int64_t begin, int64_t end) {
  Adapted half{fused.module, {fused.weights.a, {}}};
  LoraModule& module = half.module;
  module.kind = kind;
  module.path = WithLastName(module.path, name);
  module.out = end - begin;
  const int64_t rank = module.rank;
  for (int64_t e = 0; e < module.num_experts; ++e) {
    const auto rows = fused.weights.b.begin() + e * fused.module.out * rank;
    half.weights.b.insert(half.weights.b.end(), rows + begin * rank,
                          rows + end * rank);
  }
  return half;
}

// Gate and up (either may be null) as one module with a block-diagonal B.
absl::StatusOr<Adapted> Fuse(const Adapted* gate, const Adapted* up,
                             bool rslora) {
  const Adapted& any = gate != nullptr ? *gate : *up;
  if (gate != nullptr && up != nullptr &&
      gate->module.scale != up->module.scale) {
    return absl::InvalidArgumentError(absl::StrCat(
        gate->module.path, " has scale ", gate->module.scale, " and ",
        up->module.path, " ", up->module.scale,
        "; fused they would share one, use the per-expert layout"));
  }
  Adapted fused{any.module, {}};
  LoraModule& module = fused.module;
  module.kind = LoraModuleKind::kExpertGateUp;
  module.path = WithLastName(module.path, "gate_up_proj");
  const int64_t width = any.module.out, in = module.in;
  const int64_t gate_rank = gate != nullptr ? gate->module.rank : 0;
  const int64_t up_rank = up != nullptr ? up->module.rank : 0;
  module.out = 2 * width;
  module.rank = gate_rank + up_rank;
  module.alpha = AlphaFor(any.module, module.rank, rslora);
  module.scale = any.module.scale;
  AdapterWeights& weights = fused.weights;
  weights.b.assign(module.num_experts * module.out * module.rank, 0.0f);
  for (int64_t e = 0; e < module.num_experts; ++e) {
    const auto place = [&](const Adapted* part, int64_t row, int64_t column) {
      if (part == nullptr) return;
      const int64_t rank = part->module.rank;
      const auto a = part->weights.a.begin() + e * rank * in;
      weights.a.insert(weights.a.end(), a, a + rank * in);
      for (int64_t o = 0; o < width; ++o) {
        for (int64_t r = 0; r < rank; ++r) {
          weights.b[(e * module.out + row + o) * module.rank + column + r] =
              part->weights.b[(e * width + o) * rank + r];
        }
      }
    };
    place(gate, 0, 0);
    place(up, width, gate_rank);
  }
  return fused;
}

}  // namespace

ExpertLayout DefaultExpertLayout(const LoraPlan& plan) {
  int64_t tensors = 0;
  for (const LoraModule& module : plan.modules) {
    if (!IsExpertKind(module.kind)) continue;
    if (module.kind == LoraModuleKind::kExpertGateUp) {
      return ExpertLayout::kFused;
    }
    tensors += module.num_experts * 2;
  }
  return tensors > kMaxPerExpertTensors ? ExpertLayout::kFused
                                        : ExpertLayout::kPerExpert;
}

absl::StatusOr<PeftAdapter> ConvertExpertLayout(const PeftAdapter& adapter,
                                                ExpertLayout layout) {
  PeftAdapter result = adapter;
  result.layout = layout;
  result.config_json.clear();
  result.plan.modules.clear();
  result.weights.clear();
  const auto add = [&](Adapted adapted) {
    result.plan.modules.push_back(std::move(adapted.module));
    result.weights.push_back(std::move(adapted.weights));
  };
  const std::vector<LoraModule>& modules = adapter.plan.modules;
  for (size_t i = 0; i < modules.size(); ++i) {
    const Adapted adapted{modules[i], adapter.weights[i]};
    const LoraModuleKind kind = modules[i].kind;
    if (layout == ExpertLayout::kPerExpert &&
        kind == LoraModuleKind::kExpertGateUp) {
      const int64_t width = modules[i].out / 2;
      add(Half(adapted, LoraModuleKind::kExpertGate, "gate_proj", 0, width));
      add(Half(adapted, LoraModuleKind::kExpertUp, "up_proj", width,
               2 * width));
    } else if (layout == ExpertLayout::kFused &&
               kind == LoraModuleKind::kExpertGate) {
      const bool has_up = i + 1 < modules.size() &&
                          modules[i + 1].kind == LoraModuleKind::kExpertUp &&
                          modules[i + 1].layer == modules[i].layer;
      Adapted up;
      if (has_up) up = {modules[i + 1], adapter.weights[i + 1]};
      CADRE_ASSIGN_OR_RETURN(
          Adapted fused,
          Fuse(&adapted, has_up ? &up : nullptr, adapter.plan.rslora));
      add(std::move(fused));
      if (has_up) ++i;
    } else if (layout == ExpertLayout::kFused &&
               kind == LoraModuleKind::kExpertUp) {
      CADRE_ASSIGN_OR_RETURN(Adapted fused,
                             Fuse(nullptr, &adapted, adapter.plan.rslora));
      add(std::move(fused));
    } else {
      add(adapted);
    }
  }
  return result;
}

}  // namespace cadre
