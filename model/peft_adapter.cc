// Reading of PEFT directories.

#include "model/peft_adapter.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/lora_modules.h"
#include "model/peft_config.h"
#include "model/safetensors.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

// A and B of one PEFT module path.
struct Pair {
  const SafetensorInfo* a = nullptr;
  const SafetensorInfo* b = nullptr;
};

class Reader {
 public:
  Reader(const ModelSpec& spec, const PeftConfig& config,
         const SafetensorsFile& file, PeftAdapter& adapter)
      : spec_(spec), config_(config), file_(file), adapter_(adapter) {}

  absl::Status Read();

 private:
  absl::Status CollectPairs();
  absl::Status ChooseLayout();
  absl::Status ReadModule(const AdaptableModule& entry);
  absl::Status ReadPlain(const AdaptableModule& entry, const std::string& path,
                         const std::string& pattern_path);
  absl::Status ReadFused(const AdaptableModule& entry);
  absl::Status ReadPerExpert(const AdaptableModule& entry);

  // The pair under a path, marked as used; null when there is none.
  const Pair* Take(const std::string& path);
  absl::Status CheckShape(const SafetensorInfo& info,
                          std::vector<int64_t> expected, int64_t rank) const;
  std::vector<float> Values(const SafetensorInfo& info) const;
  void Append(LoraModule module, const std::string& pattern_path,
              AdapterWeights weights);

  const ModelSpec& spec_;
  const PeftConfig& config_;
  const SafetensorsFile& file_;
  PeftAdapter& adapter_;
  std::map<std::string, Pair> pairs_;
  std::set<std::string> used_;
};

absl::Status Reader::CollectPairs() {
  bool first = true;
  for (const SafetensorInfo& info : file_.tensors()) {
    absl::string_view path = info.name;
    const bool known = absl::ConsumePrefix(&path, "base_model.model.");
    const bool is_a = absl::ConsumeSuffix(&path, ".lora_A.weight");
    if (!known || (!is_a && !absl::ConsumeSuffix(&path, ".lora_B.weight"))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", info.name,
          " is not named base_model.model.PATH.lora_A.weight or .lora_B."
          "weight"));
    }
    if (IsSkippedTensor(spec_, absl::StrCat(path, ".weight"))) {
      const absl::Span<const char> bytes = file_.Bytes(info);
      adapter_.skipped.push_back({info.name, info.dtype, info.shape,
                                  std::string(bytes.begin(), bytes.end())});
      continue;
    }
    if (info.dtype != DType::kF32 && info.dtype != DType::kBF16 &&
        info.dtype != DType::kF16) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", info.name, " is ",
                       SafetensorsDTypeName(info.dtype), ", not a float"));
    }
    if (first) adapter_.dtype = info.dtype;
    first = false;
    if (adapter_.dtype != info.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", info.name, " is ", SafetensorsDTypeName(info.dtype),
          ", others are ", SafetensorsDTypeName(adapter_.dtype)));
    }
    Pair& pair = pairs_[std::string(path)];
    (is_a ? pair.a : pair.b) = &info;
  }
  for (const auto& [path, pair] : pairs_) {
    if (pair.a == nullptr || pair.b == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("module ", path, " has no ",
                       pair.a == nullptr ? "lora_A" : "lora_B", " tensor"));
    }
  }
  if (pairs_.empty()) {
    return absl::InvalidArgumentError("no adapter tensor for this model");
  }
  return absl::OkStatus();
}

absl::Status Reader::ChooseLayout() {
  bool fused = false, per_expert = false;
  for (const MoeModule& moe : MoeModules(spec_)) {
    const std::string experts = moe.peft_path + ".experts";
    fused = fused || pairs_.count(experts) != 0 ||
            pairs_.count(experts + ".base_layer") != 0;
    const auto next = pairs_.lower_bound(experts + ".0");
    per_expert = per_expert || (next != pairs_.end() &&
                                absl::StartsWith(next->first, experts + ".") &&
                                next->first[experts.size() + 1] >= '0' &&
                                next->first[experts.size() + 1] <= '9');
  }
  if (fused && per_expert) {
    return absl::InvalidArgumentError(
        "routed experts appear both fused and one by one");
  }
  adapter_.layout = fused ? ExpertLayout::kFused : ExpertLayout::kPerExpert;
  if (fused && !config_.HasFusedLayoutOfToday()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fused experts need peft_version 0.19 or later in adapter_config.json "
        "(it is \"",
        config_.peft_version, "\"): earlier versions put A on the other side"));
  }
  return absl::OkStatus();
}

const Pair* Reader::Take(const std::string& path) {
  const auto it = pairs_.find(path);
  if (it == pairs_.end()) return nullptr;
  used_.insert(path);
  return &it->second;
}

absl::Status Reader::CheckShape(const SafetensorInfo& info,
                                std::vector<int64_t> expected,
                                int64_t rank) const {
  if (info.shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", info.name, " is ",
                                                 ShapeString(info.shape),
                                                 ", the model and rank ", rank,
                                                 " of adapter_config.json "
                                                 "need ",
                                                 ShapeString(expected)));
}

std::vector<float> Reader::Values(const SafetensorInfo& info) const {
  std::vector<float> values(static_cast<size_t>(info.num_elements()));
  // Float dtypes were checked; this conversion cannot fail.
  ConvertElements(info.dtype, file_.Bytes(info).data(), info.num_elements(),
                  DType::kF32, values.data())
      .IgnoreError();
  return values;
}

void Reader::Append(LoraModule module, const std::string& pattern_path,
                    AdapterWeights weights) {
  module.rank = config_.RankOf(pattern_path);
  module.alpha = config_.AlphaOf(pattern_path);
  module.scale = LoraScale(module.alpha, module.rank, config_.rslora);
  adapter_.plan.modules.push_back(std::move(module));
  adapter_.weights.push_back(std::move(weights));
}

absl::Status Reader::ReadPlain(const AdaptableModule& entry,
                               const std::string& path,
                               const std::string& pattern_path) {
  const Pair* pair = Take(path);
  const bool is_router = entry.module.kind == LoraModuleKind::kRouter;
  const bool targeted =
      config_.TargetsModule(path) ||
      (is_router && config_.TargetsParameter(path + ".weight"));
  if (pair == nullptr && !targeted) return absl::OkStatus();
  // A full path that only names an indexer, or tensors for one.
  if (!entry.can_have_gradient) {
    if (pair == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "module ", path, " is part of an indexer and cannot be adapted"));
  }
  if (pair == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter_config.json targets ", path, ", which has no tensors"));
  }
  if (!targeted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", pair->a->name, " is not named by target_modules",
        is_router ? " or target_parameters" : "", " in adapter_config.json"));
  }
  const int64_t rank = config_.RankOf(pattern_path);
  CADRE_RETURN_IF_ERROR(CheckShape(*pair->a, {rank, entry.module.in}, rank));
  CADRE_RETURN_IF_ERROR(CheckShape(*pair->b, {entry.module.out, rank}, rank));
  Append(entry.module, pattern_path, {Values(*pair->a), Values(*pair->b)});
  return absl::OkStatus();
}

absl::Status Reader::ReadFused(const AdaptableModule& entry) {
  const LoraModule& module = entry.module;
  const bool is_down = module.kind == LoraModuleKind::kExpertDown;
  const std::string gate_up = entry.peft_path + ".gate_up_proj";
  const std::string down = entry.peft_path + ".down_proj";
  const std::string& own = is_down ? down : gate_up;
  if (!config_.TargetsParameter(own)) return absl::OkStatus();
  // gate_up_proj is declared first, so it is the inner wrapper when both are
  // adapted.
  const bool nested = !is_down && config_.TargetsParameter(down);
  const std::string path =
      nested ? entry.peft_path + ".base_layer" : entry.peft_path;
  const Pair* pair = Take(path);
  if (pair == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter_config.json targets ", own, ", but there is no tensor ",
        "base_model.model.", path, ".lora_A.weight"));
  }
  const int64_t rank = config_.RankOf(own);
  const int64_t e = module.num_experts;
  CADRE_RETURN_IF_ERROR(CheckShape(*pair->a, {e * rank, module.in}, rank));
  CADRE_RETURN_IF_ERROR(CheckShape(*pair->b, {module.out, rank * e}, rank));
  AdapterWeights weights;
  weights.a = Values(*pair->a);  // rows are expert-major already
  const std::vector<float> b = Values(*pair->b);
  weights.b.resize(b.size());
  for (int64_t i = 0; i < e; ++i) {
    for (int64_t o = 0; o < module.out; ++o) {
      for (int64_t r = 0; r < rank; ++r) {
        weights.b[(i * module.out + o) * rank + r] =
            b[o * rank * e + r * e + i];
      }
    }
  }
  Append(module, own, std::move(weights));
  return absl::OkStatus();
}

absl::Status Reader::ReadPerExpert(const AdaptableModule& entry) {
  const LoraModule& module = entry.module;
  const auto path_of = [&](int64_t e) {
    return absl::StrCat(entry.peft_path, ".", e, ".", entry.name);
  };
  const std::string first = path_of(0);
  const int64_t rank = config_.RankOf(first);
  AdapterWeights weights;
  int64_t present = 0;
  for (int64_t e = 0; e < module.num_experts; ++e) {
    const std::string path = path_of(e);
    const Pair* pair = Take(path);
    if (pair == nullptr) {
      if (present == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "module ", path, " has no tensors, other experts of its layer do"));
    }
    if (present++ != e) {
      return absl::InvalidArgumentError(absl::StrCat(
          "module ", first, " has no tensors, other experts of its layer do"));
    }
    if (!config_.TargetsModule(path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", pair->a->name,
                       " is not named by target_modules in "
                       "adapter_config.json"));
    }
    if (config_.RankOf(path) != rank ||
        config_.AlphaOf(path) != config_.AlphaOf(first)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "module ", path, " has another rank or alpha than expert 0; ",
          "experts of one layer must agree"));
    }
    CADRE_RETURN_IF_ERROR(CheckShape(*pair->a, {rank, module.in}, rank));
    CADRE_RETURN_IF_ERROR(CheckShape(*pair->b, {module.out, rank}, rank));
    const std::vector<float> a = Values(*pair->a), b = Values(*pair->b);
    weights.a.insert(weights.a.end(), a.begin(), a.end());
    weights.b.insert(weights.b.end(), b.begin(), b.end());
  }
  if (present > 0) Append(module, first, std::move(weights));
  return absl::OkStatus();
}

absl::Status Reader::ReadModule(const AdaptableModule& entry) {
  switch (entry.module.kind) {
    case LoraModuleKind::kLinear:
      return ReadPlain(entry, entry.peft_path, entry.peft_path);
    case LoraModuleKind::kRouter:
      return ReadPlain(entry, entry.peft_path,
                       config_.TargetsParameter(entry.peft_path + ".weight")
                           ? entry.peft_path + ".weight"
                           : entry.peft_path);
    default:
      return adapter_.layout == ExpertLayout::kFused ? ReadFused(entry)
                                                     : ReadPerExpert(entry);
  }
}

absl::Status Reader::Read() {
  CADRE_RETURN_IF_ERROR(CollectPairs());
  CADRE_RETURN_IF_ERROR(ChooseLayout());
  LoraPlan& plan = adapter_.plan;
  plan.rank = config_.rank;
  plan.alpha = config_.alpha;
  plan.rslora = config_.rslora;
  plan.dropout = config_.dropout;
  for (const AdaptableModule& entry :
       AdaptableModules(spec_, adapter_.layout == ExpertLayout::kFused)) {
    CADRE_RETURN_IF_ERROR(ReadModule(entry));
  }
  for (const auto& [path, pair] : pairs_) {
    if (used_.count(path) != 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", pair.a->name, ": this ", spec_.model_type,
        " model has no such module, or adapter_config.json does not name it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PeftAdapter> ReadPeftAdapter(const std::string& dir,
                                            const ModelSpec& spec) {
  const std::string config_path = dir + "/adapter_config.json";
  const std::string weights_path = dir + "/adapter_model.safetensors";
  PeftAdapter adapter;
  CADRE_ASSIGN_OR_RETURN(adapter.config_json, ReadFile(config_path));
  absl::StatusOr<PeftConfig> config = PeftConfig::Parse(adapter.config_json);
  if (!config.ok()) return Annotate(config.status(), config_path);
  CADRE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(weights_path));
  CADRE_RETURN_IF_ERROR(
      Annotate(Reader(spec, *config, file, adapter).Read(), weights_path));
  // There is no encoder for f16; its values are exact in f32.
  if (adapter.dtype == DType::kF16) adapter.dtype = DType::kF32;
  return adapter;
}

}  // namespace cadre
