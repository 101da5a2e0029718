#include "model/lora_targets.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/lora_modules.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

bool IsGlob(absl::string_view text) {
  return text.find_first_of("*?[") != absl::string_view::npos;
}

bool GlobMatches(const std::string& glob, const std::string& text) {
  return fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

// Path or last components of it.
bool IsPathOrSuffix(absl::string_view path, absl::string_view target) {
  return path == target || absl::EndsWith(path, absl::StrCat(".", target));
}

bool MatchesExpertTarget(const LoraModule& module, const std::string& target) {
  const bool down = module.kind == LoraModuleKind::kExpertDown;
  const size_t cut = module.path.rfind('.') + 1;
  // PEFT's name of the parameter that the module belongs to.
  const std::string parameter =
      module.path.substr(0, cut) + (down ? "down_proj" : "gate_up_proj");
  if (target == "experts" || target == "mlp.experts") return true;
  if (IsGlob(target)) {
    return GlobMatches(target, module.path) || GlobMatches(target, parameter);
  }
  // gate_up_proj exists in experts only; bare gate_proj, up_proj and down_proj
  // mean Linear modules of that name.
  if (target == "gate_up_proj") return !down;
  if (!absl::StrContains(target, "experts.")) return false;
  return IsPathOrSuffix(module.path, target) ||
         IsPathOrSuffix(parameter, target);
}

bool Matches(const AdaptableModule& option, const std::string& target) {
  const LoraModule& module = option.module;
  switch (module.kind) {
    case LoraModuleKind::kLinear:
      if (target == "all-linear") return option.can_have_gradient;
      if (target == "attention") {
        return option.is_mixer && option.can_have_gradient;
      }
      if (IsGlob(target)) {
        return option.can_have_gradient && (GlobMatches(target, module.path) ||
                                            GlobMatches(target, option.name));
      }
      return IsPathOrSuffix(module.path, target);
    case LoraModuleKind::kRouter:
      if (target == "expert_gate") return true;
      if (IsGlob(target)) {
        return GlobMatches(target, module.path) ||
               GlobMatches(target, "expert_gate");
      }
      return IsPathOrSuffix(module.path, target) ||
             IsPathOrSuffix(module.path + ".weight", target);
    default:
      return target == "all-linear" || MatchesExpertTarget(module, target);
  }
}

absl::Status CheckOptions(const LoraOptions& options) {
  if (options.rank < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("LoRA rank ", options.rank, " must be at least 1"));
  }
  if (!(options.alpha > 0.0) || !std::isfinite(options.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("LoRA alpha ", options.alpha, " must be above 0"));
  }
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "LoRA dropout ", options.dropout, " must be at least 0 and below 1"));
  }
  if (options.targets.empty()) {
    return absl::InvalidArgumentError(
        "no LoRA target: name at least one module");
  }
  return absl::OkStatus();
}

absl::Status UnknownTarget(const std::string& target, const ModelSpec& spec) {
  return absl::InvalidArgumentError(
      absl::StrCat("LoRA target \"", target, "\" matches no module of this ",
                   spec.model_type, " model; it has ",
                   absl::StrJoin(LoraTargetNames(spec), ", "),
                   ", and the groups attention, experts, all-linear"));
}

// Layers of one kind in which a plain name is absent although the kind could
// have it: "q_proj" in MLA layers.
void WarnAboutKinds(const ModelSpec& spec, const std::string& target,
                    const std::vector<LoraTargetMatch>& matches,
                    std::vector<std::string>& warnings) {
  bool mixer = false;
  std::set<std::string> matched;
  for (const LoraTargetMatch& match : matches) {
    if (match.target != target) continue;
    matched.insert(match.layer_kind);
    if (match.layer_kind != "moe" && match.layer_kind != "dense_mlp") {
      mixer = true;
    }
  }
  if (!mixer) return;
  std::vector<std::pair<std::string, int>> missing;
  for (const BlockSpec& block : spec.blocks) {
    const std::string kind = MixerKindName(block.mixer);
    if (matched.count(kind) != 0) continue;
    auto it = std::find_if(missing.begin(), missing.end(),
                           [&](const auto& m) { return m.first == kind; });
    if (it == missing.end()) {
      missing.emplace_back(kind, 0);
      it = missing.end() - 1;
    }
    ++it->second;
  }
  for (const auto& [kind, count] : missing) {
    warnings.push_back(absl::StrCat("LoRA target ", target,
                                    " matches nothing in the ", count, " ",
                                    kind, " layers"));
  }
}

}  // namespace

double LoraScale(double alpha, int64_t rank, bool rslora) {
  const double r = static_cast<double>(rank);
  return rslora ? alpha / std::sqrt(r) : alpha / r;
}

std::vector<int64_t> LoraModule::a_shape() const {
  if (num_experts > 0) return {num_experts, rank, in};
  return {rank, in};
}

std::vector<int64_t> LoraModule::b_shape() const {
  if (num_experts > 0) return {num_experts, out, rank};
  return {out, rank};
}

int64_t LoraModule::num_parameters() const {
  return std::max<int64_t>(num_experts, 1) * rank * (in + out);
}

int64_t LoraPlan::num_parameters() const {
  int64_t n = 0;
  for (const LoraModule& module : modules) n += module.num_parameters();
  return n;
}

const LoraModule* LoraPlan::Find(absl::string_view path) const {
  for (const LoraModule& module : modules) {
    if (module.path == path) return &module;
  }
  return nullptr;
}

std::vector<std::string> LoraTargetNames(const ModelSpec& spec) {
  std::set<std::string> names;
  for (const LinearModule& module : LinearModules(spec)) {
    if (module.can_have_gradient) names.insert(module.name);
  }
  if (!MoeModules(spec).empty()) {
    names.insert({"expert_gate", "experts"});
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<LoraPlan> PlanLora(const ModelSpec& spec,
                                  const LoraOptions& options) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  LoraPlan plan;
  plan.rank = options.rank;
  plan.alpha = options.alpha;
  plan.rslora = options.rslora;
  plan.dropout = options.dropout;
  std::vector<AdaptableModule> all =
      AdaptableModules(spec, options.shared_gate_up);
  std::vector<bool> chosen(all.size());
  std::set<std::string> seen;
  for (const std::string& target : options.targets) {
    if (!seen.insert(target).second) continue;
    std::vector<LoraTargetMatch> matches;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!Matches(all[i], target)) continue;
      if (!all[i].can_have_gradient) {
        return absl::InvalidArgumentError(absl::StrCat(
            "LoRA target \"", target, "\" names ", all[i].module.path,
            ": indexer modules get no gradient and cannot be adapted"));
      }
      chosen[i] = true;
      auto it = std::find_if(matches.begin(), matches.end(),
                             [&](const LoraTargetMatch& match) {
                               return match.layer_kind == all[i].layer_kind;
                             });
      if (it == matches.end()) {
        matches.push_back({target, all[i].layer_kind, 0, {}});
        it = matches.end() - 1;
      }
      ++it->num_modules;
      if (it->layers.empty() || it->layers.back() != all[i].module.layer) {
        it->layers.push_back(all[i].module.layer);
      }
    }
    if (matches.empty()) {
      if (absl::StrContains(target, "indexer")) {
        return absl::InvalidArgumentError(absl::StrCat(
            "LoRA target \"", target,
            "\": indexer modules get no gradient and cannot be adapted"));
      }
      return UnknownTarget(target, spec);
    }
    WarnAboutKinds(spec, target, matches, plan.warnings);
    for (LoraTargetMatch& match : matches) {
      plan.matches.push_back(std::move(match));
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!chosen[i]) continue;
    LoraModule& module = all[i].module;
    module.rank = options.rank;
    module.alpha = options.alpha;
    module.scale = LoraScale(options.alpha, options.rank, options.rslora);
    plan.modules.push_back(std::move(module));
  }
  return plan;
}

}  // namespace cadre
