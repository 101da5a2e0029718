#ifndef CADRE_BASE_TEXT_JINJA_VALUE_H_
#define CADRE_BASE_TEXT_JINJA_VALUE_H_

// Values of the template language, with Python's meaning of truth, equality,
// order and text. Copying is cheap: lists, dicts and strings are shared and
// never changed once made. Not thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace cadre::jinja {

class Value;
struct Callable;   // runtime.h
struct Namespace;  // runtime.h
struct LoopState;  // runtime.h

using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;

class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
    kNamespace,
    kLoop,
    kCallable,
  };

  Value() = default;  // none
  // name: what was looked up, for messages.
  static Value Undefined(std::string name);
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  static Value String(std::string value);
  static Value MakeList(List items);
  static Value MakeTuple(List items);
  static Value MakeDict(Dict entries);
  static Value Of(std::shared_ptr<Namespace> value);
  static Value Of(std::shared_ptr<LoopState> value);
  static Value Of(std::shared_ptr<const Callable> value);
  static Value FromJson(const Json& json);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kList) || is(Kind::kTuple); }
  bool is_dict() const { return is(Kind::kDict); }
  bool is_integer() const { return is(Kind::kInt) || is(Kind::kBool); }
  bool is_number() const { return is_integer() || is(Kind::kFloat); }
  absl::string_view TypeName() const;  // as Python names it

  int64_t int_value() const { return int_; }  // kBool, kInt
  double number() const { return is(Kind::kFloat) ? float_ : double(int_); }
  // kString; for kUndefined the name.
  const std::string& string() const { return *string_; }
  const List& list() const { return *list_; }  // kList, kTuple
  const Dict& dict() const { return *dict_; }
  const std::shared_ptr<Namespace>& name_space() const { return namespace_; }
  const std::shared_ptr<LoopState>& loop() const { return loop_; }
  const std::shared_ptr<const Callable>& callable() const { return callable_; }

  const Value* Find(absl::string_view key) const;  // of a dict

  bool Truth() const;
  std::string Str() const;
  std::string Repr() const;
  bool Equals(const Value& other) const;
  // -1, 0 or 1; an error where Python has no order between the two.
  absl::StatusOr<int> Compare(const Value& other) const;
  // What a for loop goes through: items, keys, characters.
  absl::StatusOr<List> Iterate() const;
  absl::StatusOr<int64_t> Length() const;
  absl::StatusOr<Json> ToJson(int depth = 0) const;

  // Size of the whole tree below, shared parts counted each time they appear:
  // what printing or comparing it costs. Text counts a step for 16 bytes.
  int64_t weight() const { return weight_; }
  int depth() const { return depth_; }
  // A namespace (or a method's object that may be one) is this or is inside.
  bool HoldsNamespace() const { return holds_namespace_; }

 private:
  Kind kind_ = Kind::kNone;
  int depth_ = 0;
  bool holds_namespace_ = false;
  int64_t weight_ = 1;
  int64_t int_ = 0;
  double float_ = 0;
  std::shared_ptr<const std::string> string_;
  std::shared_ptr<const List> list_;
  std::shared_ptr<const Dict> dict_;
  std::shared_ptr<Namespace> namespace_;
  std::shared_ptr<LoopState> loop_;
  std::shared_ptr<const Callable> callable_;
};

// A failure of the template on its input, like Python's exceptions.
absl::Status TemplateError(absl::string_view message);

// Byte offsets of the characters of a text, with the end behind the last.
std::vector<int64_t> CharacterOffsets(absl::string_view text);

// Python's str.isspace for one character.
bool IsPythonSpace(uint32_t code_point);

enum class Side { kLeft, kRight, kBoth };
// Python's str.strip and its siblings; no `characters`: white space.
std::string Strip(absl::string_view text, Side side,
                  std::optional<absl::string_view> characters = {});

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_VALUE_H_
