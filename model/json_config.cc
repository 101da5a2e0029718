#include "model/json_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// Fields of every config that say nothing about the maths of training.
constexpr const char* kBookkeeping[] = {
    "_attn_implementation_autoset", "_name_or_path", "add_cross_attention",
    "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_start_token_id", "dtype", "eos_token_id", "ep_size",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
    "model_type", "output_attentions", "output_hidden_states", "prefix",
    "pretraining_tp", "problem_type", "return_dict", "return_dict_in_generate",
    "sep_token_id", "task_specific_params", "tokenizer_class", "torch_dtype",
    "transformers_version", "use_cache",
    // Training losses of the original recipe that the reference ignores.
    "aux_loss_alpha", "seq_aux",
    // Multi-token prediction is skipped.
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "num_mtp_layers",
    "num_mtp_modules", "num_nextn_predict_layers",
    // Vision parts are skipped.
    "audio_token_id", "boi_token_id", "eoi_token_id", "ignore_index",
    "image_end_token_id", "image_start_token_id", "image_token_id",
    "image_token_index", "media_placeholder_token_id",
    "use_unified_vision_chunk", "video_end_token_id", "video_placeholder",
    "video_start_token_id", "video_token_id", "vision_config",
    "vision_end_token_id", "vision_start_token_id"};

bool IsNeutral(const Json& json) {
  switch (json.type()) {
    case Json::Type::kNull:
      return true;
    case Json::Type::kBool:
      return !json.bool_value();
    case Json::Type::kInt:
    case Json::Type::kFloat:
      return json.number_value() == 0;
    case Json::Type::kString:
      return json.string_value().empty();
    case Json::Type::kArray:
      return json.items().empty();
    case Json::Type::kObject:
      return json.members().empty();
  }
  return false;
}

bool SameValue(const Json& a, const Json& b) {
  const bool numbers =
      (a.is_int() || a.is_float()) && (b.is_int() || b.is_float());
  if (numbers) return a.number_value() == b.number_value();
  return a.type() == b.type() && WriteJson(a) == WriteJson(b);
}

}  // namespace

absl::Status ConfigProblems::status() const {
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "; "));
}

void JsonConfig::Error(absl::string_view field, absl::string_view what) {
  problems_->errors.push_back(absl::StrCat(where_, field, " ", what));
}

bool JsonConfig::Contains(const char* name) const {
  return object_ != nullptr && object_->Find(name) != nullptr;
}

bool JsonConfig::Has(const char* name) const {
  return Contains(name) && !object_->Find(name)->is_null();
}

const Json* JsonConfig::Find(Names names, const char** found) {
  const Json* value = nullptr;
  *found = *names.begin();
  for (const char* name : names) {
    used_.insert(name);
    if (!Has(name)) continue;
    const Json* other = object_->Find(name);
    if (value == nullptr) {
      value = other;
      *found = name;
    } else if (!SameValue(*value, *other)) {
      Error(*found, absl::StrCat("is ", WriteJson(*value), " but ", where_,
                                 name, " is ", WriteJson(*other),
                                 "; they mean the same and must agree"));
    }
  }
  return value;
}

std::optional<int64_t> JsonConfig::OptionalInt(Names names, int64_t min,
                                               int64_t max) {
  const char* name;
  const Json* json = Find(names, &name);
  if (json == nullptr) return std::nullopt;
  if (!json->is_int() || json->int_value() < min || json->int_value() > max) {
    Error(name, absl::StrCat("is ", WriteJson(*json),
                             ", expected an integer from ", min, " to ", max));
    return std::nullopt;
  }
  return json->int_value();
}

int64_t JsonConfig::Int(Names names, int64_t fallback, int64_t min,
                        int64_t max) {
  return OptionalInt(names, min, max).value_or(fallback);
}

std::optional<double> JsonConfig::OptionalNumber(Names names, double min,
                                                 double max) {
  const char* name;
  const Json* json = Find(names, &name);
  if (json == nullptr) return std::nullopt;
  const bool number = json->is_int() || json->is_float();
  const double value = json->number_value();
  if (!number || !std::isfinite(value) || value < min || value > max) {
    Error(name, absl::StrCat("is ", WriteJson(*json),
                             ", expected a number from ", min, " to ", max));
    return std::nullopt;
  }
  return value;
}

double JsonConfig::Number(Names names, double fallback, double min,
                          double max) {
  return OptionalNumber(names, min, max).value_or(fallback);
}

bool JsonConfig::Bool(Names names, bool fallback) {
  const char* name;
  const Json* json = Find(names, &name);
  if (json == nullptr) return fallback;
  if (!json->is_bool()) {
    Error(name,
          absl::StrCat("is ", WriteJson(*json), ", expected true or false"));
    return fallback;
  }
  return json->bool_value();
}

std::string JsonConfig::String(Names names, const std::string& fallback) {
  const char* name;
  const Json* json = Find(names, &name);
  if (json == nullptr) return fallback;
  if (!json->is_string()) {
    Error(name, absl::StrCat("is ", WriteJson(*json), ", expected a string"));
    return fallback;
  }
  return json->string_value();
}

std::optional<std::vector<std::string>> JsonConfig::Strings(const char* name) {
  const char* found;
  const Json* json = Find({name}, &found);
  if (json == nullptr) return std::nullopt;
  std::vector<std::string> values;
  bool good = json->is_array();
  for (const Json& item : json->items()) {
    good = good && item.is_string();
    values.push_back(item.string_value());
  }
  if (!good) {
    Error(name, "is not a list of strings");
    return std::nullopt;
  }
  return values;
}

std::optional<std::vector<int64_t>> JsonConfig::Ints(const char* name) {
  const char* found;
  const Json* json = Find({name}, &found);
  if (json == nullptr) return std::nullopt;
  std::vector<int64_t> values;
  bool good = json->is_array();
  for (const Json& item : json->items()) {
    good = good && item.is_int();
    values.push_back(item.int_value());
  }
  if (!good) {
    Error(name, "is not a list of integers");
    return std::nullopt;
  }
  return values;
}

JsonConfig JsonConfig::Object(const char* name) {
  const char* found;
  const Json* json = Find({name}, &found);
  if (json != nullptr && !json->is_object()) {
    Error(name, "is not an object");
    json = nullptr;
  }
  return JsonConfig(json, absl::StrCat(where_, name, "."), problems_);
}

void JsonConfig::RequireBool(const char* name, bool value,
                             absl::string_view why) {
  if (Bool({name}, value) != value) {
    Error(name, absl::StrCat("is ", value ? "false" : "true", ": ", why));
  }
}

void JsonConfig::RequireString(const char* name, absl::string_view value,
                               absl::string_view why) {
  const std::string actual =
      String({name}, std::string(value.data(), value.size()));
  if (actual != value) {
    Error(name, absl::StrCat("is \"", actual, "\": ", why));
  }
}

void JsonConfig::RequireZero(const char* name, absl::string_view why) {
  if (Number({name}, 0.0, -1e30, 1e30) != 0.0) {
    Error(name, absl::StrCat("is not 0: ", why));
  }
}

void JsonConfig::Ignore(Names names) {
  for (const char* name : names) used_.insert(name);
}

void JsonConfig::WarnAboutUnused() {
  if (object_ == nullptr) return;
  for (const char* name : kBookkeeping) used_.insert(name);
  for (const Json::Member& member : object_->members()) {
    if (used_.count(member.key) != 0 || IsNeutral(member.value)) continue;
    Warn(absl::StrCat("field ", where_, member.key,
                      " is not known for this model type and has no effect"));
  }
}

}  // namespace cadre
