#include "base/text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

bool IsWhiteSpace(uint32_t code_point) {
  if ((code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return false;
  }
}

// What a regular expression's \w is in Unicode.
bool IsWordCharacter(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

// Start of the character that ends at `end` > 0.
int64_t PreviousCharacter(absl::string_view text, int64_t end) {
  int64_t pos = end - 1;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) {
    --pos;
  }
  return pos;
}

bool WordEndsAt(absl::string_view text, int64_t end) {
  if (end == 0) return false;
  int64_t pos = PreviousCharacter(text, end);
  return IsWordCharacter(NextCodePoint(text, &pos));
}

bool WordStartsAt(absl::string_view text, int64_t begin) {
  if (begin >= static_cast<int64_t>(text.size())) return false;
  return IsWordCharacter(NextCodePoint(text, &begin));
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json* json) {
  std::vector<AddedToken> tokens;
  if (json == nullptr || json->is_null()) return tokens;
  if (!json->is_array()) {
    return absl::InvalidArgumentError("`added_tokens` is not an array");
  }
  for (const Json& item : json->items()) {
    const Json* id = item.Find("id");
    const Json* content = item.Find("content");
    if (id == nullptr || !id->is_int() || id->int_value() < 0 ||
        id->int_value() > std::numeric_limits<int32_t>::max() ||
        content == nullptr || !content->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens[", tokens.size(),
                       "] needs a whole number `id` and a string `content`"));
    }
    const auto flag = [&](absl::string_view key) {
      const Json* value = item.Find(key);
      return value != nullptr && value->bool_value();
    };
    tokens.push_back({.id = static_cast<int32_t>(id->int_value()),
                      .content = content->string_value(),
                      .special = flag("special"),
                      .normalized = flag("normalized"),
                      .single_word = flag("single_word"),
                      .lstrip = flag("lstrip"),
                      .rstrip = flag("rstrip")});
  }
  return tokens;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) continue;
    by_first_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(
        static_cast<int32_t>(i));
  }
  for (std::vector<int32_t>& list : by_first_byte_) {
    std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
      return tokens_[a].content.size() > tokens_[b].content.size();
    });
  }
}

std::vector<AddedTokenMatcher::Piece> AddedTokenMatcher::Split(
    absl::string_view text) const {
  std::vector<Piece> pieces;
  const int64_t size = static_cast<int64_t>(text.size());
  int64_t done = 0;
  for (int64_t pos = 0; pos < size;) {
    const AddedToken* found = nullptr;
    for (int32_t i : by_first_byte_[static_cast<unsigned char>(text[pos])]) {
      if (absl::StartsWith(text.substr(pos), tokens_[i].content)) {
        found = &tokens_[i];
        break;
      }
    }
    if (found == nullptr) {
      ++pos;
      continue;
    }
    int64_t begin = pos;
    int64_t end = pos + static_cast<int64_t>(found->content.size());
    // The search goes on behind the match even where it does not count.
    pos = end;
    if (found->single_word &&
        (WordEndsAt(text, begin) || WordStartsAt(text, end))) {
      continue;
    }
    if (found->lstrip) {
      while (begin > done) {
        const int64_t previous = PreviousCharacter(text, begin);
        int64_t at = previous;
        if (!IsWhiteSpace(NextCodePoint(text, &at))) break;
        begin = previous;
      }
    }
    if (found->rstrip) {
      while (end < size) {
        int64_t at = end;
        if (!IsWhiteSpace(NextCodePoint(text, &at))) break;
        end = at;
      }
    }
    // A match inside white space that the one before has taken.
    if (begin < done) continue;
    if (done < begin) pieces.push_back({{done, begin}, -1});
    pieces.push_back({{begin, end}, found->id});
    done = end;
  }
  if (done < size) pieces.push_back({{done, size}, -1});
  return pieces;
}

}  // namespace cadre
