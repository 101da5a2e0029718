// Writing of PEFT directories.

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/lora_modules.h"
#include "model/peft_adapter.h"
#include "model/safetensors.h"

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

bool IsFused(const PeftAdapter& adapter) {
  return adapter.layout == ExpertLayout::kFused;
}

// What the plan's modules are called by PEFT.
class PeftNames {
 public:
  PeftNames(const PeftAdapter& adapter, const ModelSpec& spec)
      : fused_(IsFused(adapter)), all_(AdaptableModules(spec, fused_)) {
    for (const AdaptableModule& entry : all_) {
      by_path_.emplace(entry.module.path, &entry);
    }
    for (const LoraModule& module : adapter.plan.modules) {
      adapted_.insert(module.path);
    }
  }

  // Null when the model has no such module.
  const AdaptableModule* Find(const std::string& path) const {
    const auto it = by_path_.find(path);
    return it == by_path_.end() ? nullptr : it->second;
  }
  bool IsAdapted(const AdaptableModule& entry) const {
    return adapted_.count(entry.module.path) != 0;
  }
  const std::vector<AdaptableModule>& all() const { return all_; }

  // Every module that `filter` takes is adapted.
  bool AllAdapted(
      const std::function<bool(const AdaptableModule&)>& filter) const {
    return std::all_of(all_.begin(), all_.end(),
                       [&](const AdaptableModule& entry) {
                         return !filter(entry) || IsAdapted(entry);
                       });
  }

 private:
  const bool fused_;
  const std::vector<AdaptableModule> all_;
  std::map<std::string, const AdaptableModule*> by_path_;
  std::set<std::string> adapted_;
};

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

std::string NewConfig(const PeftAdapter& adapter, const PeftNames& names) {
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

// One tensor of the file and how to make it.
struct Output {
  SafetensorInfo info;
  std::function<std::vector<float>()> values;
  const std::string* raw = nullptr;  // set: these bytes instead
};

void AddPair(const std::string& path, int64_t rank, int64_t in, int64_t out,
             DType dtype, std::function<std::vector<float>()> a,
             std::function<std::vector<float>()> b,
             std::map<std::string, Output>& outputs) {
  const std::string base = absl::StrCat("base_model.model.", path, ".lora_");
  outputs[base + "A.weight"] = {
      {base + "A.weight", dtype, {rank, in}, 0, 0}, std::move(a), nullptr};
  outputs[base + "B.weight"] = {
      {base + "B.weight", dtype, {out, rank}, 0, 0}, std::move(b), nullptr};
}

void AddModule(const PeftAdapter& adapter, size_t index,
               const AdaptableModule& entry, bool down_is_adapted,
               std::map<std::string, Output>& outputs) {
  const LoraModule& module = adapter.plan.modules[index];
  const AdapterWeights& weights = adapter.weights[index];
  const int64_t rank = module.rank, in = module.in, out = module.out;
  const int64_t experts = module.num_experts;
  if (!IsExpertKind(module.kind)) {
    AddPair(
        entry.peft_path, rank, in, out, adapter.dtype,
        [&weights] { return weights.a; }, [&weights] { return weights.b; },
        outputs);
    return;
  }
  if (IsFused(adapter)) {
    const bool inner =
        module.kind == LoraModuleKind::kExpertGateUp && down_is_adapted;
    AddPair(
        inner ? entry.peft_path + ".base_layer" : entry.peft_path,
        experts * rank, in, out, adapter.dtype,
        [&weights] { return weights.a; },
        [&weights, experts, rank, out] {
          std::vector<float> b(weights.b.size());
          for (int64_t e = 0; e < experts; ++e) {
            for (int64_t o = 0; o < out; ++o) {
              for (int64_t r = 0; r < rank; ++r) {
                b[o * rank * experts + r * experts + e] =
                    weights.b[(e * out + o) * rank + r];
              }
            }
          }
          return b;
        },
        outputs);
    return;
  }
  for (int64_t e = 0; e < experts; ++e) {
    const auto slice = [e](const std::vector<float>& all, int64_t n) {
      return std::vector<float>(all.begin() + e * n, all.begin() + (e + 1) * n);
    };
    AddPair(
        absl::StrCat(entry.peft_path, ".", e, ".", entry.name), rank, in, out,
        adapter.dtype,
        [&weights, slice, rank, in] { return slice(weights.a, rank * in); },
        [&weights, slice, rank, out] { return slice(weights.b, rank * out); },
        outputs);
  }
}

absl::Status WriteTensors(const std::map<std::string, Output>& outputs,
                          const std::string& path) {
  std::vector<SafetensorInfo> infos;
  for (const auto& [name, output] : outputs) infos.push_back(output.info);
  SortForSafetensors(infos);
  CADRE_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, infos));
  std::string bytes;
  for (const SafetensorInfo& info : infos) {
    const std::string& name = info.name;
    const Output& output = outputs.at(name);
    if (output.raw != nullptr) {
      CADRE_RETURN_IF_ERROR(writer->Append(name, *output.raw));
      continue;
    }
    const std::vector<float> values = output.values();
    bytes.resize(static_cast<size_t>(output.info.num_bytes()));
    CADRE_RETURN_IF_ERROR(ConvertElements(DType::kF32, values.data(),
                                          output.info.num_elements(),
                                          output.info.dtype, bytes.data()));
    CADRE_RETURN_IF_ERROR(writer->Append(name, bytes));
  }
  return writer->Commit();
}

bool FitsLayout(const PeftAdapter& adapter) {
  return std::none_of(
      adapter.plan.modules.begin(), adapter.plan.modules.end(),
      [&](const LoraModule& module) {
        return IsFused(adapter) ? module.kind == LoraModuleKind::kExpertGate ||
                                      module.kind == LoraModuleKind::kExpertUp
                                : module.kind == LoraModuleKind::kExpertGateUp;
      });
}

absl::Status CheckWeights(const PeftAdapter& adapter, const PeftNames& names) {
  const std::vector<LoraModule>& modules = adapter.plan.modules;
  if (adapter.weights.size() != modules.size() || modules.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter has ", modules.size(),
                     " modules and weights for ", adapter.weights.size()));
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const LoraModule& module = modules[i];
    if (names.Find(module.path) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no module ", module.path));
    }
    const int64_t count = std::max<int64_t>(module.num_experts, 1);
    const AdapterWeights& weights = adapter.weights[i];
    if (static_cast<int64_t>(weights.a.size()) !=
            count * module.rank * module.in ||
        static_cast<int64_t>(weights.b.size()) !=
            count * module.rank * module.out) {
      return absl::InvalidArgumentError(
          absl::StrCat("module ", module.path, ": A has ", weights.a.size(),
                       " and B ", weights.b.size(), " elements, shapes are ",
                       ShapeString(module.a_shape()), " and ",
                       ShapeString(module.b_shape())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WritePeftAdapter(const PeftAdapter& adapter, const ModelSpec& spec,
                              const std::string& dir) {
  if (!FitsLayout(adapter)) {
    CADRE_ASSIGN_OR_RETURN(const PeftAdapter converted,
                           ConvertExpertLayout(adapter, adapter.layout));
    return WritePeftAdapter(converted, spec, dir);
  }
  const PeftNames names(adapter, spec);
  CADRE_RETURN_IF_ERROR(Annotate(CheckWeights(adapter, names),
                                 absl::StrCat("cannot write adapter ", dir)));
  if (::mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
    return FileError("create folder", dir, errno);
  }
  std::set<int> layers_with_down;
  for (const LoraModule& module : adapter.plan.modules) {
    if (module.kind == LoraModuleKind::kExpertDown) {
      layers_with_down.insert(module.layer);
    }
  }
  std::map<std::string, Output> outputs;
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    AddModule(adapter, i, *names.Find(module.path),
              layers_with_down.count(module.layer) != 0, outputs);
  }
  for (const SkippedAdapterTensor& tensor : adapter.skipped) {
    outputs[tensor.name] = {
        {tensor.name, tensor.dtype, tensor.shape, 0, 0}, {}, &tensor.bytes};
  }
  CADRE_RETURN_IF_ERROR(
      WriteTensors(outputs, dir + "/adapter_model.safetensors"));
  return WriteFileAtomic(dir + "/adapter_config.json",
                         adapter.config_json.empty() ? NewConfig(adapter, names)
                                                     : adapter.config_json);
}

}  // namespace cadre
