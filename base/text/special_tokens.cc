#include "base/text/special_tokens.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/json.h"

namespace cadre {
namespace {

// An empty object for a file that is not there.
absl::StatusOr<Json> ReadOptional(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::Object({});
  return ReadJsonFile(path);
}

// "eos_token": "</s>" or {"content": "</s>", ...}; "" where absent or null.
std::string TokenText(const Json& config, absl::string_view key) {
  const Json* value = config.Find(key);
  if (value != nullptr && value->is_object()) value = value->Find("content");
  return value == nullptr ? "" : value->string_value();
}

// "eos_token_id": 7 or [7, 9]. Multimodal models keep theirs in text_config.
absl::StatusOr<std::vector<int32_t>> TokenIds(const Json& config,
                                              const std::string& key,
                                              int64_t vocab_size) {
  const Json* value = config.Find(key);
  if (value == nullptr) {
    if (const Json* text_config = config.Find("text_config")) {
      value = text_config->Find(key);
    }
  }
  std::vector<int32_t> ids;
  if (value == nullptr || value->is_null()) return ids;
  const std::vector<Json> single = {*value};
  for (const Json& id : value->is_array() ? value->items() : single) {
    if (!id.is_int()) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " holds ", id.TypeName(), ", not a token id"));
    }
    // Some configs write -1 for "none", or an id the tokenizer lacks.
    if (id.int_value() < 0 || id.int_value() >= vocab_size) continue;
    ids.push_back(static_cast<int32_t>(id.int_value()));
  }
  return ids;
}

}  // namespace

absl::StatusOr<SpecialTokens> FindSpecialTokens(const std::string& model_dir,
                                                const Tokenizer& tokenizer) {
  struct Source {
    std::string path;
    Json json;
  };
  const auto read = [&](absl::string_view name) -> absl::StatusOr<Source> {
    Source source{absl::StrCat(model_dir, "/", name), Json()};
    CADRE_ASSIGN_OR_RETURN(source.json, ReadOptional(source.path));
    return source;
  };
  CADRE_ASSIGN_OR_RETURN(const Source tokenizer_config,
                         read("tokenizer_config.json"));
  CADRE_ASSIGN_OR_RETURN(const Source token_map,
                         read("special_tokens_map.json"));
  CADRE_ASSIGN_OR_RETURN(const Source generation,
                         read("generation_config.json"));
  CADRE_ASSIGN_OR_RETURN(const Source config, read("config.json"));

  SpecialTokens tokens;
  const Json* add_bos = tokenizer_config.json.Find("add_bos_token");
  tokens.add_bos = add_bos != nullptr && add_bos->bool_value();
  const auto find = [&](const std::string& key, std::optional<int32_t>* id,
                        std::string* text,
                        std::vector<int32_t>* all) -> absl::Status {
    const auto add = [&](int32_t candidate) {
      if (!id->has_value()) *id = candidate;
      if (all != nullptr &&
          std::find(all->begin(), all->end(), candidate) == all->end()) {
        all->push_back(candidate);
      }
    };
    for (const Source* source : {&tokenizer_config, &token_map}) {
      const std::string content = TokenText(source->json, key);
      if (content.empty()) continue;
      const std::optional<int32_t> known = tokenizer.TokenToId(content);
      if (!known.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(source->path, ": ", key, " `", content,
                         "` is not in the tokenizer"));
      }
      add(*known);
      if (text->empty()) *text = content;
    }
    for (const Source* source : {&generation, &config}) {
      absl::StatusOr<std::vector<int32_t>> ids = TokenIds(
          source->json, absl::StrCat(key, "_id"), tokenizer.vocab_size());
      if (!ids.ok()) return Annotate(ids.status(), source->path);
      for (int32_t candidate : *ids) add(candidate);
    }
    if (id->has_value() && text->empty()) {
      CADRE_ASSIGN_OR_RETURN(*text, tokenizer.Decode({**id}));
    }
    return absl::OkStatus();
  };
  CADRE_RETURN_IF_ERROR(
      find("bos_token", &tokens.bos, &tokens.bos_text, nullptr));
  CADRE_RETURN_IF_ERROR(
      find("eos_token", &tokens.eos, &tokens.eos_text, &tokens.stop_ids));
  CADRE_RETURN_IF_ERROR(
      find("pad_token", &tokens.pad, &tokens.pad_text, nullptr));
  return tokens;
}

}  // namespace cadre
