#include "model/model_spec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/json_config.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

struct Family {
  const char* model_type;
  void (*parse)(JsonConfig&, ModelSpec&);
  // Tensor prefix of a config whose fields are under text_config; null: never
  // nested.
  const char* nested_prefix;
  // Tensor prefix of a flat config; null: always nested.
  const char* flat_prefix;
};

// Sorted by model_type.
constexpr Family kFamilies[] = {
    {"deepseek_v3", ParseDeepseekV3, nullptr, "model."},
    {"deepseek_v32", ParseDeepseekV32, nullptr, "model."},
    {"glm5_next", ParseGlm5Next, "model.language_model.", "model."},
    {"glm5_next_text", ParseGlm5Next, nullptr, "model."},
    {"glm_moe_dsa", ParseGlmMoeDsa, nullptr, "model."},
    {"kimi_k2", ParseDeepseekV3, nullptr, "model."},
    {"kimi_k3", ParseKimiK3, "language_model.model.", nullptr},
    {"kimi_linear", ParseKimiLinear, nullptr, "model."},
    {"qwen3_5_moe", ParseQwen35Moe, "model.language_model.", "model."},
    {"qwen3_5_moe_text", ParseQwen35Moe, nullptr, "model."},
    {"qwen3_moe", ParseQwen3Moe, nullptr, "model."},
    {"qwen3_next", ParseQwen3Next, nullptr, "model."},
};

// A field that may stand at top level and in text_config.
template <typename Read>
auto ReadAtEither(JsonConfig& root, JsonConfig& text, const char* name,
                  Read read) {
  const auto outer = read(root), inner = read(text);
  if (root.Has(name) && text.Has(name) && outer != inner) {
    root.Error(name, "differs between the top level and text_config");
  }
  return text.Has(name) ? inner : outer;
}

void ReadOuterFields(JsonConfig& root, JsonConfig& text, ModelSpec& spec) {
  spec.tie_word_embeddings =
      ReadAtEither(root, text, "tie_word_embeddings", [](JsonConfig& config) {
        return config.Bool({"tie_word_embeddings"}, false);
      });
  spec.pad_token_id =
      ReadAtEither(root, text, "pad_token_id", [](JsonConfig& config) {
        return config.Int({"pad_token_id"}, -1, -1, int64_t{1} << 31);
      });
  if (spec.pad_token_id >= spec.vocab_size) {
    root.Error("pad_token_id",
               absl::StrCat("is ", spec.pad_token_id, ", vocab_size is ",
                            spec.vocab_size));
  }
}

// Products of sizes must fit 64 bits everywhere behind the parser.
bool Plausible(const ModelSpec& spec) {
  double total = 2.0 * static_cast<double>(spec.vocab_size) *
                 static_cast<double>(spec.hidden_size);
  for (const BlockSpec& block : spec.blocks) {
    const double hidden = static_cast<double>(spec.hidden_size);
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      total += 3.0 * hidden * static_cast<double>(moe->num_experts) *
               static_cast<double>(moe->expert_width);
    }
  }
  return total < 1e16;
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view config_json) {
  absl::StatusOr<Json> json = ParseJson(config_json);
  if (!json.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json is not valid JSON: ", json.status().message()));
  }
  if (!json->is_object()) {
    return absl::InvalidArgumentError("config.json is not a JSON object");
  }
  const Json* type = json->Find("model_type");
  const std::string model_type =
      type != nullptr && type->is_string() ? type->string_value() : "";
  const Family* family = nullptr;
  for (const Family& candidate : kFamilies) {
    if (model_type == candidate.model_type) family = &candidate;
  }
  if (family == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: model_type ",
        model_type.empty() ? "is missing"
                           : absl::StrCat("\"", model_type, "\" is unknown"),
        "; supported are ", absl::StrJoin(SupportedModelTypes(), ", ")));
  }

  ConfigProblems problems;
  JsonConfig root(&*json, "", &problems);
  const bool nested = root.Has("text_config");
  if (nested ? family->nested_prefix == nullptr
             : family->flat_prefix == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "config.json: model_type \"", model_type, "\" ",
        nested ? "has no text_config" : "needs its fields in text_config"));
  }
  ModelSpec spec;
  spec.model_type = model_type;
  spec.tensor_prefix = nested ? family->nested_prefix : family->flat_prefix;
  JsonConfig nested_text = root.Object("text_config");
  JsonConfig& text = nested ? nested_text : root;
  if (nested) {
    // kimi_k3 calls its text part kimi_linear.
    const std::string inner = text.String({"model_type"}, model_type);
    if (inner != model_type && inner != model_type + "_text" &&
        !(model_type == "kimi_k3" && inner == "kimi_linear")) {
      text.Error("model_type", absl::StrCat("is \"", inner,
                                            "\", which is not the text part "
                                            "of ",
                                            model_type));
    }
  }
  family->parse(text, spec);
  ReadOuterFields(root, text, spec);
  const bool allow_mxfp4 = model_type == "kimi_k3";
  ReadQuantization(root.Object("quantization_config"), allow_mxfp4, spec);
  if (nested) {
    ReadQuantization(text.Object("quantization_config"), allow_mxfp4, spec);
    text.WarnAboutUnused();
  }
  root.WarnAboutUnused();
  if (problems.errors.empty() && !Plausible(spec)) {
    problems.errors.push_back("the sizes give more than 10^16 parameters");
  }
  CADRE_RETURN_IF_ERROR(
      Annotate(problems.status(),
               absl::StrCat("config.json (model_type ", model_type, ")")));
  spec.warnings = std::move(problems.warnings);
  return spec;
}

std::vector<std::string> SupportedModelTypes() {
  std::vector<std::string> types;
  for (const Family& family : kFamilies) types.push_back(family.model_type);
  return types;
}

const char* MixerKindName(const MixerSpec& mixer) {
  if (std::holds_alternative<KdaSpec>(mixer)) return "kda";
  if (std::holds_alternative<GdnSpec>(mixer)) return "gdn";
  if (std::holds_alternative<GqaSpec>(mixer)) return "gqa";
  return std::get<MlaSpec>(mixer).indexer ? "dsa" : "mla";
}

const char* FfnKindName(const FfnSpec& ffn) {
  return std::holds_alternative<MoeSpec>(ffn) ? "moe" : "dense_mlp";
}

}  // namespace cadre
