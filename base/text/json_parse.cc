#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

constexpr int kMaxDepth = 100;
// Objects below this size are searched for repeated keys by comparing.
constexpr int64_t kSmallObject = 16;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// Recursive descent over the text; the first error ends it.
class JsonParser {
 public:
  JsonParser(absl::string_view text, int64_t max_values)
      : text_(text),
        size_(static_cast<int64_t>(text.size())),
        max_values_(max_values) {}

  JsonResult Run() {
    JsonResult result;
    const int64_t invalid = FindInvalidUtf8(text_);
    if (invalid >= 0) {
      result.error = {JsonError::Kind::kUtf8, invalid,
                      "bytes that are not UTF-8"};
      return result;
    }
    SkipSpace();
    if (pos_ == size_) {
      Fail(pos_, "expected a value, found nothing");
    } else if (ParseValue(&result.value, 0)) {
      SkipSpace();
      if (pos_ < size_) Fail(pos_, "unexpected text behind the value");
    }
    result.ok = !failed_;
    result.error = std::move(error_);
    return result;
  }

 private:
  bool Fail(int64_t offset, std::string message,
            JsonError::Kind kind = JsonError::Kind::kSyntax) {
    if (!failed_) error_ = {kind, offset, std::move(message)};
    failed_ = true;
    return false;
  }

  void SkipSpace() {
    while (pos_ < size_ && IsSpace(text_[pos_])) ++pos_;
  }

  bool Literal(absl::string_view word) {
    if (text_.substr(pos_, word.size()) != word) {
      return Fail(pos_, "expected a value");
    }
    pos_ += static_cast<int64_t>(word.size());
    return true;
  }

  bool ParseValue(Json* out, int depth) {
    if (depth > kMaxDepth) {
      return Fail(pos_, absl::StrCat("nested deeper than ", kMaxDepth));
    }
    if (max_values_ > 0 && ++num_values_ > max_values_) {
      return Fail(pos_, absl::StrCat("more than ", max_values_, " values"));
    }
    out->offset_ = pos_;
    switch (text_[pos_]) {
      case '{':
        return ParseObject(out, depth);
      case '[':
        return ParseArray(out, depth);
      case '"':
        out->type_ = Json::Type::kString;
        return ParseString(&out->string_);
      case 't':
        out->type_ = Json::Type::kBool;
        out->int_ = 1;
        return Literal("true");
      case 'f':
        out->type_ = Json::Type::kBool;
        return Literal("false");
      case 'n':
        return Literal("null");
      default:
        return ParseNumber(out);
    }
  }

  bool ParseNumber(Json* out) {
    const int64_t begin = pos_;
    int64_t p = pos_;
    const auto digits = [&] {
      const int64_t from = p;
      while (p < size_ && IsDigit(text_[p])) ++p;
      return p > from;
    };
    if (p < size_ && text_[p] == '-') ++p;
    const int64_t first = p;
    if (!digits()) return Fail(begin, "expected a value");
    if (text_[first] == '0' && p - first > 1) {
      return Fail(begin, "a number must not begin with 0");
    }
    bool integer = true;
    if (p < size_ && text_[p] == '.') {
      ++p;
      integer = false;
      if (!digits()) return Fail(p, "expected a digit behind '.'");
    }
    if (p < size_ && (text_[p] == 'e' || text_[p] == 'E')) {
      ++p;
      integer = false;
      if (p < size_ && (text_[p] == '+' || text_[p] == '-')) ++p;
      if (!digits()) return Fail(p, "expected a digit in the exponent");
    }
    pos_ = p;
    const char* from = text_.data() + begin;
    const char* to = text_.data() + p;
    if (integer && std::from_chars(from, to, out->int_).ec == std::errc()) {
      out->type_ = Json::Type::kInt;
      return true;
    }
    out->type_ = Json::Type::kFloat;
    out->int_ = 0;
    if (std::from_chars(from, to, out->float_).ec ==
        std::errc::result_out_of_range) {
      // Too large is infinite and too small is zero, as Python reads them.
      out->float_ = std::strtod(std::string(from, to).c_str(), nullptr);
    }
    return true;
  }

  // Four hex digits at pos_.
  bool ParseHex(uint32_t* out) {
    if (pos_ + 4 > size_) return Fail(pos_, "truncated \\u escape");
    const char* from = text_.data() + pos_;
    const auto [end, ec] = std::from_chars(from, from + 4, *out, 16);
    if (ec != std::errc() || end != from + 4) {
      return Fail(pos_, "\\u must be followed by four hex digits");
    }
    pos_ += 4;
    return true;
  }

  bool ParseEscape(std::string* out) {
    const int64_t begin = pos_ - 1;
    if (pos_ == size_) return Fail(begin, "unterminated string");
    const char c = text_[pos_++];
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out->push_back(c);
        return true;
      case 'b':
        out->push_back('\b');
        return true;
      case 'f':
        out->push_back('\f');
        return true;
      case 'n':
        out->push_back('\n');
        return true;
      case 'r':
        out->push_back('\r');
        return true;
      case 't':
        out->push_back('\t');
        return true;
      case 'u':
        break;
      default:
        return Fail(begin,
                    absl::StrCat("unknown escape \\", std::string(1, c)));
    }
    uint32_t code = 0;
    if (!ParseHex(&code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(pos_, 2) == "\\u") {
      pos_ += 2;
      uint32_t low = 0;
      if (!ParseHex(&low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) {
        return Fail(begin, "\\u escape is half of a surrogate pair");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code < 0xE000) {
      return Fail(begin, "\\u escape is half of a surrogate pair");
    }
    AppendUtf8(code, out);
    return true;
  }

  bool ParseString(std::string* out) {
    const int64_t begin = pos_++;
    while (true) {
      int64_t p = pos_;
      while (p < size_ && text_[p] != '"' && text_[p] != '\\' &&
             static_cast<unsigned char>(text_[p]) >= 0x20) {
        ++p;
      }
      out->append(text_.data() + pos_, p - pos_);
      pos_ = p;
      if (p == size_) return Fail(begin, "unterminated string");
      ++pos_;
      if (text_[p] == '"') return true;
      if (text_[p] != '\\') {
        return Fail(p, "control character in a string; write it as \\u00XX");
      }
      if (!ParseEscape(out)) return false;
    }
  }

  bool ParseArray(Json* out, int depth) {
    out->type_ = Json::Type::kArray;
    ++pos_;
    SkipSpace();
    if (pos_ < size_ && text_[pos_] == ']') {
      ++pos_;
      return true;
    }
    while (true) {
      SkipSpace();
      if (pos_ == size_) return Fail(out->offset_, "unterminated array");
      if (!ParseValue(&out->items_.emplace_back(), depth + 1)) return false;
      SkipSpace();
      if (pos_ == size_) return Fail(out->offset_, "unterminated array");
      const char c = text_[pos_++];
      if (c == ']') return true;
      if (c != ',') return Fail(pos_ - 1, "expected ',' or ']'");
    }
  }

  bool ParseObject(Json* out, int depth) {
    out->type_ = Json::Type::kObject;
    ++pos_;
    SkipSpace();
    if (pos_ < size_ && text_[pos_] == '}') {
      ++pos_;
      return true;
    }
    while (true) {
      SkipSpace();
      if (pos_ == size_) return Fail(out->offset_, "unterminated object");
      if (text_[pos_] != '"') return Fail(pos_, "expected a key in quotes");
      Json::Member& member = out->members_.emplace_back();
      member.key_offset = pos_;
      if (!ParseString(&member.key)) return false;
      SkipSpace();
      if (pos_ == size_ || text_[pos_] != ':') {
        return Fail(pos_, "expected ':' behind a key");
      }
      ++pos_;
      SkipSpace();
      if (pos_ == size_) return Fail(out->offset_, "unterminated object");
      if (!ParseValue(&member.value, depth + 1)) return false;
      SkipSpace();
      if (pos_ == size_) return Fail(out->offset_, "unterminated object");
      const char c = text_[pos_++];
      if (c == '}') return CheckKeys(*out);
      if (c != ',') return Fail(pos_ - 1, "expected ',' or '}'");
    }
  }

  bool RepeatedKey(const Json::Member& member) {
    return Fail(member.key_offset,
                absl::StrCat("key ", WriteJsonString(member.key),
                             " appears twice in one object"),
                JsonError::Kind::kDuplicateKey);
  }

  bool CheckKeys(const Json& object) {
    const std::vector<Json::Member>& members = object.members_;
    const int64_t n = static_cast<int64_t>(members.size());
    if (n <= kSmallObject) {
      for (int64_t i = 1; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) {
          if (members[i].key == members[j].key) return RepeatedKey(members[i]);
        }
      }
      return true;
    }
    absl::flat_hash_set<absl::string_view> seen;
    seen.reserve(n);
    for (const Json::Member& member : members) {
      if (!seen.insert(member.key).second) return RepeatedKey(member);
    }
    return true;
  }

  absl::string_view text_;
  int64_t size_;
  int64_t max_values_;
  int64_t num_values_ = 0;
  int64_t pos_ = 0;
  bool failed_ = false;
  JsonError error_;
};

JsonResult ParseJsonDetailed(absl::string_view text, int64_t max_values) {
  return JsonParser(text, max_values).Run();
}

absl::StatusOr<Json> ParseJson(absl::string_view text) {
  JsonResult result = ParseJsonDetailed(text);
  if (result.ok) return std::move(result.value);
  int64_t line = 1, line_begin = 0;
  for (int64_t i = 0; i < result.error.offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      line_begin = i + 1;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "JSON error at line ", line, ", column ",
      result.error.offset - line_begin + 1, ": ", result.error.message));
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  std::ostringstream contents;
  contents << file.rdbuf();
  if (!file) {
    return absl::UnavailableError(absl::StrCat("cannot read ", path));
  }
  absl::StatusOr<Json> json = ParseJson(contents.str());
  if (!json.ok()) return Annotate(json.status(), path);
  return json;
}

}  // namespace cadre
