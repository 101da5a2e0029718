// Oniguruma (Ruby syntax) -> PCRE2 10.42.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text/regex.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

constexpr int kMaxClassDepth = 20;

// Unicode White_Space. PCRE2's own \s also takes U+180E.
constexpr char kSpace[] = "\\t-\\r\\x{85}\\p{Z}";
// PCRE2's own \w lacks marks and has all of \p{N}.
constexpr char kWord[] = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
constexpr char kHex[] = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(absl::string_view pattern)
      : in_(pattern), size_(static_cast<int64_t>(pattern.size())) {}

  absl::StatusOr<std::string> Run() {
    std::string out;
    while (pos_ < size_) {
      const char c = in_[pos_];
      if (c == '\\') {
        out += Escape();
      } else if (c == '[') {
        ++pos_;
        out += Class(0);
      } else if (c == '(' && in_.substr(pos_, 3) == "(?#") {
        const auto end = in_.find(')', pos_);
        if (end == absl::string_view::npos) {
          Fail("unterminated comment");
        } else {
          pos_ = static_cast<int64_t>(end) + 1;
        }
      } else {
        if (c == '(' && in_.substr(pos_, 2) == "(?") CheckOptions();
        out.push_back(c);
        ++pos_;
      }
      if (!error_.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("regular expression `", in_, "`: ", error_));
      }
    }
    return out;
  }

 private:
  void Fail(absl::string_view message) {
    if (error_.empty()) {
      error_ = absl::StrCat(message, " at offset ", pos_);
    }
    pos_ = size_;
  }

  // (?m) lets the dot match line ends in Ruby; PCRE2 calls that s.
  void CheckOptions() {
    for (int64_t p = pos_ + 2; p < size_; ++p) {
      const char c = in_[p];
      if (c == 'm') return Fail("option m is not supported");
      if (c != 'i' && c != 'x' && c != '-') return;
    }
  }

  // At a backslash outside a class.
  std::string Escape() {
    if (pos_ + 1 >= size_) {
      Fail("backslash at the end");
      return "";
    }
    const char c = in_[pos_ + 1];
    switch (c) {
      case 's':
        pos_ += 2;
        return absl::StrCat("[", kSpace, "]");
      case 'S':
        pos_ += 2;
        return absl::StrCat("[^", kSpace, "]");
      case 'w':
        pos_ += 2;
        return absl::StrCat("[", kWord, "]");
      case 'W':
        pos_ += 2;
        return absl::StrCat("[^", kWord, "]");
      case 'h':
        pos_ += 2;
        return absl::StrCat("[", kHex, "]");
      case 'H':
        pos_ += 2;
        return absl::StrCat("[^", kHex, "]");
      default:
        return PlainEscape();
    }
  }

  // Copies an escape that both sides read alike. \uHHHH is spelled \x{HHHH}.
  std::string PlainEscape() {
    const char c = in_[pos_ + 1];
    if (c == 'u') {
      const std::string digits(in_.substr(pos_ + 2, 4));
      pos_ += 6;
      if (pos_ > size_) Fail("truncated \\u escape");
      return absl::StrCat("\\x{", digits, "}");
    }
    std::string out(in_.substr(pos_, 2));
    pos_ += 2;
    if ((c == 'p' || c == 'P' || c == 'x') && pos_ < size_ &&
        in_[pos_] == '{') {
      const auto end = in_.find('}', pos_);
      if (end == absl::string_view::npos) {
        Fail("unterminated {");
        return "";
      }
      out += std::string(in_.substr(pos_, end + 1 - pos_));
      pos_ = static_cast<int64_t>(end) + 1;
    }
    return out;
  }

  // A set of characters: those in [items] or matched by one of `others`, each
  // of which is an expression for one character.
  struct Term {
    std::string items;
    std::vector<std::string> others;

    bool empty() const { return items.empty() && others.empty(); }
    std::string Pattern() const {
      if (others.empty()) return absl::StrCat("[", items, "]");
      std::vector<std::string> parts = others;
      if (!items.empty()) parts.push_back(absl::StrCat("[", items, "]"));
      if (parts.size() == 1) return parts[0];
      std::string out = "(?:";
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) out += "|";
        out += parts[i];
      }
      return out + ")";
    }
  };

  // Behind '['; reads through the matching ']'.
  std::string Class(int depth) {
    if (depth > kMaxClassDepth) {
      Fail("classes nested too deep");
      return "";
    }
    bool negated = false;
    if (pos_ < size_ && in_[pos_] == '^') {
      negated = true;
      ++pos_;
    }
    std::vector<Term> terms(1);
    bool first = true;
    while (pos_ < size_ && (first || in_[pos_] != ']')) {
      ClassItem(depth, first, &terms);
      first = false;
    }
    if (pos_ >= size_) {
      Fail("unterminated class");
      return "";
    }
    ++pos_;
    for (const Term& term : terms) {
      if (term.empty()) {
        Fail("empty side of &&");
        return "";
      }
    }
    if (terms.size() == 1 && terms[0].others.empty()) {
      return absl::StrCat(negated ? "[^" : "[", terms[0].items, "]");
    }
    std::string one;
    for (size_t i = 1; i < terms.size(); ++i) {
      absl::StrAppend(&one, "(?=", terms[i].Pattern(), ")");
    }
    absl::StrAppend(&one, terms[0].Pattern());
    if (negated) return absl::StrCat("(?:(?!", one, ")(?s:.))");
    return absl::StrCat("(?:", one, ")");
  }

  void ClassItem(int depth, bool first, std::vector<Term>* terms) {
    Term& term = terms->back();
    const char c = in_[pos_];
    if (in_.substr(pos_, 2) == "&&") {
      pos_ += 2;
      terms->emplace_back();
      return;
    }
    if (in_.substr(pos_, 2) == "[:") {
      const auto end = in_.find(":]", pos_);
      if (end == absl::string_view::npos) return Fail("unterminated [:");
      term.items += std::string(in_.substr(pos_, end + 2 - pos_));
      pos_ = static_cast<int64_t>(end) + 2;
      return;
    }
    if (c == '[') {
      ++pos_;
      const std::string nested = Class(depth + 1);
      // [a[bc]] is [abc].
      if (nested.size() > 2 && nested[0] == '[' && nested[1] != '^') {
        term.items += nested.substr(1, nested.size() - 2);
      } else {
        term.others.push_back(nested);
      }
      return;
    }
    if (c == '\\') {
      const char next = pos_ + 1 < size_ ? in_[pos_ + 1] : '\0';
      if (next == 's' || next == 'w' || next == 'h') {
        pos_ += 2;
        term.items += next == 's' ? kSpace : next == 'w' ? kWord : kHex;
      } else if (next == 'S' || next == 'W' || next == 'H') {
        term.others.push_back(Escape());
      } else if (next == '\0') {
        Fail("backslash at the end");
      } else {
        term.items += PlainEscape();
      }
      return;
    }
    if (c == ']' && first) term.items.push_back('\\');
    term.items.push_back(c);
    ++pos_;
  }

  absl::string_view in_;
  int64_t size_;
  int64_t pos_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  if (FindInvalidUtf8(pattern) >= 0) {
    return absl::InvalidArgumentError("regular expression is not UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace cadre
