#include "base/text/jinja/lexer.h"

#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text/jinja/value.h"
#include "base/text/utf8.h"

namespace cadre::jinja {
namespace {

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// \r\n and \r are line ends like \n, and one line end at the very end goes.
std::string NormalizeLines(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') continue;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(NormalizeLines(source)) {
    text_ = source_;
    size_ = static_cast<int64_t>(text_.size());
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (error_.empty() && pos_ < size_) Data();
    Push(Token::Kind::kEnd);
    if (!error_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("template line ", line_, ": ", error_));
    }
    return std::move(tokens_);
  }

 private:
  bool At(absl::string_view word) const {
    return text_.substr(pos_, word.size()) == word;
  }
  void Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    pos_ = size_;
  }
  Token& Push(Token::Kind kind, std::string text = "") {
    Token& token = tokens_.emplace_back();
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    return token;
  }
  // Moves to `end`, counting lines. Text that ends with a line end lets
  // lstrip_blocks work on what follows.
  void MoveTo(int64_t end) {
    if (end > pos_) at_line_start_ = text_[end - 1] == '\n';
    for (; pos_ < end; ++pos_) line_ += text_[pos_] == '\n';
  }
  void SkipAllSpace() {
    int64_t end = pos_;
    while (end < size_) {
      int64_t next = end;
      if (!IsPythonSpace(NextCodePoint(text_, &next))) break;
      end = next;
    }
    MoveTo(end);
  }

  int64_t FindOpening(int64_t from) const {
    for (int64_t p = from; p + 1 < size_; ++p) {
      if (text_[p] == '{' &&
          (text_[p + 1] == '{' || text_[p + 1] == '%' || text_[p + 1] == '#')) {
        return p;
      }
    }
    return size_;
  }

  // The text up to `end`, where a tag with this sign begins.
  std::string TextBefore(int64_t end, char sign, bool is_block) const {
    const absl::string_view text = text_.substr(pos_, end - pos_);
    if (sign == '-') return Strip(text, Side::kRight);
    if (sign != '+' && is_block) {
      const auto newline = text.rfind('\n');
      const bool has_newline = newline != absl::string_view::npos;
      const absl::string_view last =
          has_newline ? text.substr(newline + 1) : text;
      if ((has_newline || at_line_start_) && Strip(last, Side::kBoth).empty()) {
        return std::string(text.substr(0, text.size() - last.size()));
      }
    }
    return std::string(text);
  }

  // Behind a closing bracket with its sign: what white space it takes along.
  void AfterClosing(char sign, bool is_block) {
    if (sign == '-') {
      SkipAllSpace();
    } else if (sign != '+' && is_block && pos_ < size_ && text_[pos_] == '\n') {
      MoveTo(pos_ + 1);
    }
  }

  void Data() {
    const int64_t begin = FindOpening(pos_);
    if (begin == size_) {
      Push(Token::Kind::kText, std::string(text_.substr(pos_)));
      MoveTo(size_);
      return;
    }
    const char kind = text_[begin + 1];
    char sign = begin + 2 < size_ ? text_[begin + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    std::string before = TextBefore(begin, sign, kind != '{');
    if (!before.empty()) Push(Token::Kind::kText, std::move(before));
    MoveTo(begin + 2 + (sign != '\0' ? 1 : 0));
    at_line_start_ = false;
    if (kind == '#') {
      Comment();
    } else if (kind == '{') {
      Push(Token::Kind::kPrintBegin);
      Inside("}}");
    } else if (!Raw()) {
      Push(Token::Kind::kTagBegin);
      Inside("%}");
    }
  }

  void Comment() {
    const auto found = text_.find("#}", pos_);
    if (found == absl::string_view::npos) return Fail("comment without an end");
    const int64_t end = static_cast<int64_t>(found);
    const char sign = end > pos_ ? text_[end - 1] : '\0';
    MoveTo(end + 2);
    at_line_start_ = false;
    AfterClosing(sign, true);
  }

  // At `word` of a tag; moves behind its "%}" and returns the sign there.
  bool SimpleTag(absl::string_view word, int64_t from, int64_t* end,
                 char* sign) const {
    int64_t p = from;
    while (p < size_ && IsSpace(text_[p])) ++p;
    if (text_.substr(p, word.size()) != word) return false;
    p += static_cast<int64_t>(word.size());
    while (p < size_ && IsSpace(text_[p])) ++p;
    *sign = '\0';
    if (p < size_ && (text_[p] == '-' || text_[p] == '+')) *sign = text_[p++];
    if (text_.substr(p, 2) != "%}") return false;
    *end = p + 2;
    return true;
  }

  // {% raw %}...{% endraw %}; false where the tag is another one.
  bool Raw() {
    int64_t end = 0;
    char sign = '\0';
    if (!SimpleTag("raw", pos_, &end, &sign)) return false;
    MoveTo(end);
    at_line_start_ = false;
    AfterClosing(sign, true);
    for (int64_t p = pos_; p + 1 < size_; ++p) {
      if (text_[p] != '{' || text_[p + 1] != '%') continue;
      char open_sign = p + 2 < size_ ? text_[p + 2] : '\0';
      if (open_sign != '-' && open_sign != '+') open_sign = '\0';
      if (!SimpleTag("endraw", p + 2 + (open_sign != '\0' ? 1 : 0), &end,
                     &sign)) {
        continue;
      }
      Push(Token::Kind::kText, TextBefore(p, open_sign, true));
      MoveTo(end);
      at_line_start_ = false;
      AfterClosing(sign, true);
      return true;
    }
    Fail("raw without endraw");
    return true;
  }

  // Tokens up to the closing bracket.
  void Inside(absl::string_view closing) {
    std::vector<char> open;
    while (pos_ < size_) {
      const char c = text_[pos_];
      if (IsSpace(c)) {
        MoveTo(pos_ + 1);
        continue;
      }
      if (open.empty()) {
        const bool signed_end =
            (c == '-' || c == '+') &&
            text_.substr(pos_ + 1, closing.size()) == closing;
        if (signed_end || At(closing)) {
          const bool block = closing == "%}";
          MoveTo(pos_ + (signed_end ? 3 : 2));
          at_line_start_ = false;
          Push(block ? Token::Kind::kTagEnd : Token::Kind::kPrintEnd);
          AfterClosing(signed_end ? c : '\0', block);
          return;
        }
      }
      if (IsNameStart(c)) {
        int64_t end = pos_;
        while (end < size_ &&
               (IsNameStart(text_[end]) || IsDigit(text_[end]))) {
          ++end;
        }
        Push(Token::Kind::kName, std::string(text_.substr(pos_, end - pos_)));
        MoveTo(end);
      } else if (IsDigit(c)) {
        Number();
      } else if (c == '\'' || c == '"') {
        String(c);
      } else {
        Operator(&open);
      }
    }
    Fail(absl::StrCat("tag without its ", closing));
  }

  void Number() {
    int64_t end = pos_;
    bool real = false;
    std::string digits;
    const auto take = [&] {
      while (end < size_ && (IsDigit(text_[end]) || text_[end] == '_')) {
        if (text_[end] != '_') digits.push_back(text_[end]);
        ++end;
      }
    };
    take();
    if (end + 1 < size_ && text_[end] == '.' && IsDigit(text_[end + 1])) {
      real = true;
      digits.push_back(text_[end++]);
      take();
    }
    if (end < size_ && (text_[end] == 'e' || text_[end] == 'E')) {
      int64_t p = end + 1;
      std::string exponent = "e";
      if (p < size_ && (text_[p] == '+' || text_[p] == '-')) {
        if (text_[p] == '-') exponent.push_back('-');
        ++p;
      }
      if (p < size_ && IsDigit(text_[p])) {
        real = true;
        digits += exponent;
        end = p;
        take();
      }
    }
    Token& token = Push(real ? Token::Kind::kFloat : Token::Kind::kInteger);
    const char* first = digits.data();
    const char* last = first + digits.size();
    const auto result = real ? std::from_chars(first, last, token.float_value)
                             : std::from_chars(first, last, token.int_value);
    if (result.ec != std::errc()) return Fail("number out of range");
    MoveTo(end);
  }

  // A character of `digits` hex digits at pos_.
  void HexEscape(int digits, std::string* out) {
    uint32_t code = 0;
    if (pos_ + digits > size_) return Fail("truncated escape in a string");
    const char* first = text_.data() + pos_;
    const auto [end, ec] = std::from_chars(first, first + digits, code, 16);
    if (ec != std::errc() || end != first + digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      return Fail("bad escape in a string");
    }
    AppendUtf8(code, out);
    pos_ += digits;
  }

  void String(char quote) {
    const int line = line_;
    std::string value;
    MoveTo(pos_ + 1);
    while (pos_ < size_ && text_[pos_] != quote) {
      if (text_[pos_] != '\\') {
        value.push_back(text_[pos_]);
        MoveTo(pos_ + 1);
        continue;
      }
      const char c = pos_ + 1 < size_ ? text_[pos_ + 1] : '\0';
      MoveTo(std::min(pos_ + 2, size_));
      switch (c) {
        case 'n':
          value.push_back('\n');
          break;
        case 't':
          value.push_back('\t');
          break;
        case 'r':
          value.push_back('\r');
          break;
        case 'b':
          value.push_back('\b');
          break;
        case 'f':
          value.push_back('\f');
          break;
        case 'v':
          value.push_back('\v');
          break;
        case 'a':
          value.push_back('\a');
          break;
        case '0':
          value.push_back('\0');
          break;
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          value.push_back(c);
          break;
        case 'x':
          HexEscape(2, &value);
          break;
        case 'u':
          HexEscape(4, &value);
          break;
        case 'U':
          HexEscape(8, &value);
          break;
        default:
          // As Python: an unknown escape stands for itself.
          value.push_back('\\');
          value.push_back(c);
      }
    }
    if (pos_ >= size_) return Fail("string without its closing quote");
    MoveTo(pos_ + 1);
    Push(Token::Kind::kString, std::move(value)).line = line;
  }

  void Operator(std::vector<char>* open) {
    for (absl::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (At(two)) {
        Push(Token::Kind::kOperator, std::string(two));
        return MoveTo(pos_ + 2);
      }
    }
    const char c = text_[pos_];
    if (absl::string_view("+-/*%~[](){}><=.:|,;").find(c) ==
        absl::string_view::npos) {
      return Fail(
          absl::StrCat("unexpected character `", std::string(1, c), "`"));
    }
    if (c == '(' || c == '[' || c == '{') open->push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char want = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open->empty() || open->back() != want) {
        return Fail(absl::StrCat("unexpected `", std::string(1, c), "`"));
      }
      open->pop_back();
    }
    Push(Token::Kind::kOperator, std::string(1, c));
    MoveTo(pos_ + 1);
  }

  std::string source_;
  absl::string_view text_;
  int64_t size_ = 0;
  int64_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::string error_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  if (const int64_t invalid = FindInvalidUtf8(source); invalid >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("template: byte ", invalid, " is not UTF-8"));
  }
  return Lexer(source).Run();
}

}  // namespace cadre::jinja
