#ifndef CADRE_BASE_TEXT_JSON_H_
#define CADRE_BASE_TEXT_JSON_H_

// JSON text -> a tree that remembers what user-facing checks need and common
// libraries drop: the byte offset of every value and key, the order of keys,
// whether a number was an integer, and duplicate keys (an error here). Strict
// RFC 8259; the input must be UTF-8, and a \u escape must not form a lone
// surrogate. A value owns its children. Const methods are thread-safe.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class Json {
 public:
  enum class Type { kNull, kBool, kInt, kFloat, kString, kArray, kObject };
  struct Member;

  Json() = default;
  static Json Bool(bool value);
  static Json Int(int64_t value);
  static Json Float(double value);
  static Json String(std::string value);
  static Json Array(std::vector<Json> items);
  static Json Object(std::vector<Member> members);

  Type type() const { return type_; }
  bool is_null() const { return type_ == Type::kNull; }
  bool is_bool() const { return type_ == Type::kBool; }
  bool is_int() const { return type_ == Type::kInt; }
  bool is_float() const { return type_ == Type::kFloat; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_object() const { return type_ == Type::kObject; }
  // "a string", "an object", ...: for messages.
  absl::string_view TypeName() const;

  // Valid for the matching type only; neutral values otherwise.
  bool bool_value() const { return is_bool() && int_ != 0; }
  int64_t int_value() const { return is_int() ? int_ : 0; }
  double number_value() const;  // kInt or kFloat
  const std::string& string_value() const { return string_; }
  const std::vector<Json>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }
  std::vector<Json>& mutable_items() { return items_; }
  std::vector<Member>& mutable_members() { return members_; }

  // The member of that name; nullptr where absent or this is no object.
  const Json* Find(absl::string_view key) const;

  // Byte offset of the value's first character in the parsed text.
  int64_t offset() const { return offset_; }

 private:
  friend class JsonParser;
  Type type_ = Type::kNull;
  int64_t int_ = 0;
  double float_ = 0;
  int64_t offset_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

struct Json::Member {
  std::string key;
  Json value;
  int64_t key_offset = 0;
};

struct JsonError {
  enum class Kind { kSyntax, kDuplicateKey, kUtf8 };
  Kind kind = Kind::kSyntax;
  int64_t offset = 0;  // bytes from the start of the text
  std::string message;
};

struct JsonResult {
  bool ok = false;
  Json value;       // when ok
  JsonError error;  // when not ok
};

// Parses one document; nothing but white space may follow it. Nesting deeper
// than 100 is an error. Integers beyond int64 become floats.
JsonResult ParseJsonDetailed(absl::string_view text, int64_t max_values = 0);

// The same with an InvalidArgument error that names line and column.
absl::StatusOr<Json> ParseJson(absl::string_view text);

// Reads and parses a file; errors carry its path.
absl::StatusOr<Json> ReadJsonFile(const std::string& path);

// The default is one line as Python's json.dumps(ensure_ascii=False) writes it:
// non-ASCII is kept as is.
struct JsonStyle {
  int indent = -1;  // >= 0: each item on its own line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string WriteJson(const Json& value, const JsonStyle& style = {});

// A float as Python's repr writes it (shortest digits that read back the same).
std::string WriteFloat(double value);
// A quoted JSON string.
std::string WriteJsonString(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_JSON_H_
