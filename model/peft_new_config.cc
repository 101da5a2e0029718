#include "model/peft_new_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text/json.h"

namespace cadre {
namespace {

// The release whose conventions the files follow (the fused layout changed in
// 0.19).
constexpr char kPeftVersion[] = "0.21.0";

std::string Escaped(const std::string& path) {
  std::string out;
  for (char c : path) {
    if (c == '.') out += '\\';
    out += c;
  }
  return out;
}

bool IsRoutedExpert(const AdaptableModule& entry) {
  return IsExpertKind(entry.module.kind);
}

// "mlp.experts.gate_up_proj", the full path where `full`.
std::string ParameterName(const AdaptableModule& entry, bool full) {
  std::string path = entry.peft_path;
  if (!full) {
    const size_t last = path.rfind('.');
    path = path.substr(path.rfind('.', last - 1) + 1);
  }
  if (entry.module.kind == LoraModuleKind::kRouter) return path + ".weight";
  return path + (entry.module.kind == LoraModuleKind::kExpertDown
                     ? ".down_proj"
                     : ".gate_up_proj");
}

Json StringList(const std::vector<std::string>& values) {
  std::vector<Json> items;
  for (const std::string& value : values) items.push_back(Json::String(value));
  return Json::Array(std::move(items));
}

// Router and fused experts.
Json TargetParameters(const PeftNames& names, bool fused) {
  std::vector<std::string> targets;
  for (const LoraModuleKind kind :
       {LoraModuleKind::kRouter, LoraModuleKind::kExpertGateUp,
        LoraModuleKind::kExpertDown}) {
    if (kind != LoraModuleKind::kRouter && !fused) continue;
    const bool everywhere = names.AllAdapted([&](const AdaptableModule& entry) {
      return entry.module.kind == kind;
    });
    for (const AdaptableModule& entry : names.all()) {
      if (entry.module.kind != kind || !names.IsAdapted(entry)) continue;
      targets.push_back(ParameterName(entry, !everywhere));
      if (everywhere) break;
    }
  }
  return targets.empty() ? Json() : StringList(targets);
}

// Expression for the experts' Linears of one module.
std::string ExpertExpression(const AdaptableModule& entry) {
  return absl::StrCat(Escaped(entry.peft_path), "\\.\\d+\\.", entry.name);
}

// Last names where a name is adapted wherever it occurs, else full paths; one
// expression where experts would need a path each.
Json TargetModules(const PeftNames& names, bool fused) {
  std::vector<std::string> list, expressions;
  std::set<std::string> seen;
  bool need_expression = false;
  for (const AdaptableModule& entry : names.all()) {
    const bool expert = IsRoutedExpert(entry);
    if (entry.module.kind == LoraModuleKind::kRouter || (expert && fused) ||
        !names.IsAdapted(entry)) {
      continue;
    }
    const bool everywhere = names.AllAdapted([&](const AdaptableModule& other) {
      const bool counted = other.module.kind == LoraModuleKind::kLinear ||
                           (IsRoutedExpert(other) && expert);
      return counted && other.name == entry.name;
    });
    if (everywhere) {
      if (!seen.insert(entry.name).second) continue;
      list.push_back(entry.name);
      expressions.push_back(absl::StrCat(".*\\.", entry.name));
      continue;
    }
    need_expression = need_expression || expert;
    list.push_back(entry.peft_path);
    expressions.push_back(expert ? ExpertExpression(entry)
                                 : Escaped(entry.peft_path));
  }
  if (!need_expression) return StringList(list);
  return Json::String(absl::StrJoin(expressions, "|"));
}

std::string PatternKey(const AdaptableModule& entry, bool fused) {
  if (!IsRoutedExpert(entry)) {
    return Escaped(entry.module.kind == LoraModuleKind::kRouter
                       ? entry.peft_path + ".weight"
                       : entry.peft_path);
  }
  return fused ? Escaped(ParameterName(entry, true)) : ExpertExpression(entry);
}

Json Number(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) {
    return Json::Int(static_cast<int64_t>(value));
  }
  return Json::Float(value);
}

// rank_pattern and alpha_pattern: what differs from r and lora_alpha.
void Patterns(const PeftAdapter& adapter, const PeftNames& names, Json& ranks,
              Json& alphas) {
  const bool fused = IsFused(adapter);
  std::vector<Json::Member> rank_members, alpha_members;
  std::set<std::string> done;
  for (const LoraModule& module : adapter.plan.modules) {
    const AdaptableModule& entry = *names.Find(module.path);
    if (module.rank == adapter.plan.rank &&
        module.alpha == adapter.plan.alpha) {
      continue;
    }
    // All experts of a kind usually agree: one short pattern.
    const auto same_kind = [&](const LoraModule& other) {
      return other.kind != module.kind ||
             (other.rank == module.rank && other.alpha == module.alpha);
    };
    std::string key = PatternKey(entry, fused);
    if (IsRoutedExpert(entry) &&
        std::all_of(adapter.plan.modules.begin(), adapter.plan.modules.end(),
                    same_kind)) {
      const std::string parameter = ParameterName(entry, false);
      key = fused ? absl::StrCat(".*\\.",
                                 parameter.substr(parameter.rfind('.') + 1))
                  : absl::StrCat(".*\\.experts\\.\\d+\\.", entry.name);
      // `.*\.down_proj` must not reach the Linears of that name.
      if (fused && module.kind == LoraModuleKind::kExpertDown) {
        key = ".*\\.experts\\.down_proj";
      }
    }
    if (!done.insert(key).second) continue;
    rank_members.push_back({key, Json::Int(module.rank), 0});
    alpha_members.push_back({key, Number(module.alpha), 0});
  }
  ranks = Json::Object(std::move(rank_members));
  alphas = Json::Object(std::move(alpha_members));
}

}  // namespace

std::string NewPeftConfig(const PeftAdapter& adapter, const PeftNames& names) {
  const auto text = [](const std::string& value) {
    return value.empty() ? Json() : Json::String(value);
  };
  const bool fused = IsFused(adapter);
  Json ranks, alphas;
  Patterns(adapter, names, ranks, alphas);
  Json parameters = TargetParameters(names, fused);
  // PEFT refuses dropout on parameters; it has no effect in inference.
  const double dropout = parameters.is_null() ? adapter.plan.dropout : 0.0;
  std::vector<Json::Member> members;
  const auto add = [&](const char* key, Json value) {
    members.push_back({key, std::move(value), 0});
  };
  add("alpha_pattern", std::move(alphas));
  add("auto_mapping", Json());
  add("base_model_name_or_path", text(adapter.base_model_name_or_path));
  add("bias", Json::String("none"));
  add("fan_in_fan_out", Json::Bool(false));
  add("inference_mode", Json::Bool(true));
  add("init_lora_weights", Json::Bool(true));
  add("layers_pattern", Json());
  add("layers_to_transform", Json());
  add("lora_alpha", Number(adapter.plan.alpha));
  add("lora_dropout", Json::Float(dropout));
  add("modules_to_save", Json());
  add("peft_type", Json::String("LORA"));
  add("peft_version", Json::String(kPeftVersion));
  add("r", Json::Int(adapter.plan.rank));
  add("rank_pattern", std::move(ranks));
  add("revision", text(adapter.revision));
  add("target_modules", TargetModules(names, fused));
  add("target_parameters", std::move(parameters));
  add("task_type", Json::String("CAUSAL_LM"));
  add("use_dora", Json::Bool(false));
  add("use_rslora", Json::Bool(adapter.plan.rslora));
  return WriteJson(Json::Object(std::move(members)), {.indent = 2});
}

}  // namespace cadre
