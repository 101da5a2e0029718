#ifndef CADRE_BASE_TEXT_ADDED_TOKENS_H_
#define CADRE_BASE_TEXT_ADDED_TOKENS_H_

// Finds the "added_tokens" of a tokenizer.json in a text: leftmost first, and
// of those that begin at one place the longest. Immutable and thread-safe.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "base/text/text_span.h"

namespace cadre {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  // Matched in the normalized text rather than in the raw one.
  bool normalized = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space in front with it
  bool rstrip = false;       // and behind
};

// The array "added_tokens"; absent is empty.
absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json* json);

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct Piece {
    TextSpan span;
    int32_t id = -1;  // -1: ordinary text
  };
  // Cuts the text; pieces are in order and not empty.
  std::vector<Piece> Split(absl::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;
  // Indices into tokens_ by first byte, longest content first.
  std::array<std::vector<int32_t>, 256> by_first_byte_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_ADDED_TOKENS_H_
