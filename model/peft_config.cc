#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/peft_config.h"

#include <pcre2.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/json_config.h"

namespace cadre {
namespace {

// Fields that choose a variant of LoRA we do not implement: only null, false,
// "none" or an empty list or object will do.
constexpr const char* kVariants[] = {
    "alora_invocation_tokens",
    "arrow_config",
    "exclude_modules",
    "fan_in_fan_out",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
};

// Without influence on a trained adapter: how it was initialised or is run.
constexpr const char* kIrrelevant[] = {
    "auto_mapping",      "base_model_name_or_path",
    "corda_config",      "ensure_weight_tying",
    "eva_config",        "inference_mode",
    "init_lora_weights", "kasa_config",
    "loftq_config",      "lora_ga_config",
    "megatron_config",   "megatron_core",
    "qalora_group_size", "revision",
    "runtime_config",    "peft_type",
    "peft_version",      "task_type"};

bool IsOff(const Json& json) {
  return json.is_null() || (json.is_bool() && !json.bool_value()) ||
         (json.is_string() &&
          (json.string_value().empty() || json.string_value() == "none")) ||
         (json.is_array() && json.items().empty()) ||
         (json.is_object() && json.members().empty());
}

bool IsOneOf(const std::string& name, absl::Span<const char* const> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* other) { return name == other; });
}

// The patterns of rank_pattern or alpha_pattern, as PEFT anchors them.
std::vector<std::pair<PeftRegex, double>> ReadPatterns(const Json& root,
                                                       const char* name,
                                                       double min,
                                                       JsonConfig& config) {
  std::vector<std::pair<PeftRegex, double>> patterns;
  const Json* object = root.Find(name);
  if (object == nullptr || object->is_null()) return patterns;
  if (!object->is_object()) {
    config.Error(name, "is not an object");
    return patterns;
  }
  for (const Json::Member& member : object->members()) {
    absl::StatusOr<PeftRegex> regex =
        PeftRegex::Create(absl::StrCat("(?:.*\\.)?(?:", member.key, ")"));
    if (!regex.ok()) {
      config.Error(name, regex.status().message());
      continue;
    }
    const bool number = member.value.is_int() || member.value.is_float();
    if (!number || !(member.value.number_value() >= min) ||
        member.value.number_value() > 1e9) {
      config.Error(
          name, absl::StrCat("[", member.key, "] is ", WriteJson(member.value),
                             ", expected a number above 0"));
      continue;
    }
    patterns.emplace_back(*std::move(regex), member.value.number_value());
  }
  return patterns;
}

bool MatchesSuffix(const std::string& path,
                   const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) {
                       return path == target ||
                              absl::EndsWith(path, absl::StrCat(".", target));
                     });
}

}  // namespace

struct PeftRegex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

absl::StatusOr<PeftRegex> PeftRegex::Create(absl::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                             pattern.size(), PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                             &error, &offset, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern ", pattern,
        " is no regular expression: ", reinterpret_cast<const char*>(message)));
  }
  PeftRegex regex;
  regex.code_ = std::move(code);
  return regex;
}

bool PeftRegex::FullMatch(absl::string_view text) const {
  pcre2_match_data* data =
      pcre2_match_data_create_from_pattern(code_->code, nullptr);
  const int result =
      pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), 0, 0, data, nullptr);
  pcre2_match_data_free(data);
  return result >= 0;
}

absl::StatusOr<PeftConfig> PeftConfig::Parse(absl::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not valid JSON: ", json.status().message()));
  }
  if (!json->is_object()) {
    return absl::InvalidArgumentError("not a JSON object");
  }
  ConfigProblems problems;
  JsonConfig config(&*json, "", &problems);
  PeftConfig result;
  const std::string type = config.String({"peft_type"}, "");
  if (type != "LORA") {
    config.Error("peft_type",
                 absl::StrCat("is \"", type, "\", supported is LORA"));
  }
  config.RequireString("task_type", "CAUSAL_LM", "supported is CAUSAL_LM");
  config.RequireString("bias", "none",
                       "adapters with biases are not supported");
  result.rank = config.Int({"r"}, 8, 1, 1 << 20);
  result.alpha = config.Number({"lora_alpha"}, 8.0, 1e-9, 1e9);
  result.rslora = config.Bool({"use_rslora"}, false);
  result.dropout = config.Number({"lora_dropout"}, 0.0, 0.0, 0.999999);
  result.peft_version = config.String({"peft_version"}, "");
  for (const char* name : kVariants) {
    const Json* value = json->Find(name);
    if (value == nullptr || IsOff(*value)) continue;
    config.Error(name, absl::StrCat("is ", WriteJson(*value),
                                    ": not supported, plain LoRA only"));
  }
  const Json* modules = json->Find("target_modules");
  if (modules != nullptr && modules->is_string()) {
    const std::string& pattern = modules->string_value();
    if (pattern == "all-linear") {
      config.Error("target_modules",
                   "is \"all-linear\"; a saved adapter lists its modules");
    } else if (absl::StatusOr<PeftRegex> regex = PeftRegex::Create(pattern);
               regex.ok()) {
      result.target_modules_regex =
          std::make_shared<const PeftRegex>(*std::move(regex));
    } else {
      config.Error("target_modules", regex.status().message());
    }
  } else if (auto list = config.Strings("target_modules")) {
    result.target_modules = *std::move(list);
  }
  if (auto list = config.Strings("target_parameters")) {
    result.target_parameters = *std::move(list);
  }
  for (auto& [regex, rank] : ReadPatterns(*json, "rank_pattern", 1.0, config)) {
    if (rank != static_cast<double>(static_cast<int64_t>(rank))) {
      config.Error("rank_pattern", "contains a rank that is no integer");
    }
    result.rank_pattern.emplace_back(std::move(regex),
                                     static_cast<int64_t>(rank));
  }
  result.alpha_pattern = ReadPatterns(*json, "alpha_pattern", 1e-9, config);
  constexpr const char* kRead[] = {"r",
                                   "lora_alpha",
                                   "use_rslora",
                                   "lora_dropout",
                                   "bias",
                                   "target_modules",
                                   "target_parameters",
                                   "rank_pattern",
                                   "alpha_pattern"};
  for (const Json::Member& member : json->members()) {
    if (IsOneOf(member.key, kRead) || IsOneOf(member.key, kVariants) ||
        IsOneOf(member.key, kIrrelevant) || IsOff(member.value)) {
      continue;
    }
    config.Error(member.key, absl::StrCat("is ", WriteJson(member.value),
                                          ": an unknown field may change what "
                                          "the adapter means"));
  }
  CADRE_RETURN_IF_ERROR(problems.status());
  return result;
}

bool PeftConfig::TargetsModule(const std::string& path) const {
  if (target_modules_regex != nullptr) {
    return target_modules_regex->FullMatch(path);
  }
  return MatchesSuffix(path, target_modules);
}

bool PeftConfig::TargetsParameter(const std::string& path) const {
  return MatchesSuffix(path, target_parameters);
}

int64_t PeftConfig::RankOf(const std::string& path) const {
  for (const auto& [regex, value] : rank_pattern) {
    if (regex.FullMatch(path)) return value;
  }
  return rank;
}

double PeftConfig::AlphaOf(const std::string& path) const {
  for (const auto& [regex, value] : alpha_pattern) {
    if (regex.FullMatch(path)) return value;
  }
  return alpha;
}

bool PeftConfig::HasFusedLayoutOfToday() const {
  const std::vector<std::string> parts = absl::StrSplit(peft_version, '.');
  int major = 0, minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor)) {
    return false;
  }
  return major > 0 || minor >= 19;
}

}  // namespace cadre
