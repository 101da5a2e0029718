#ifndef CADRE_BASE_TEXT_SPECIAL_TOKENS_H_
#define CADRE_BASE_TEXT_SPECIAL_TOKENS_H_

// The begin, end and padding tokens of a model directory. A token named in
// tokenizer_config.json (or special_tokens_map.json) wins over the ids of
// generation_config.json and config.json.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/text/tokenizer.h"

namespace cadre {

struct SpecialTokens {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;  // what training puts behind a text
  std::optional<int32_t> pad;
  // "add_bos_token" of tokenizer_config.json: plain texts begin with bos.
  bool add_bos = false;
  // All ids that end a generation, eos first, without repeats.
  std::vector<int32_t> stop_ids;
  // Spelled out, for chat templates ("" where there is none).
  std::string bos_text;
  std::string eos_text;
  std::string pad_text;
};

// Absent files are fine (nothing is found then); malformed ones, or a name that
// the tokenizer does not know, are errors.
absl::StatusOr<SpecialTokens> FindSpecialTokens(const std::string& model_dir,
                                                const Tokenizer& tokenizer);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_SPECIAL_TOKENS_H_
