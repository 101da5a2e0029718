// The tests behind `is`.

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/runtime.h"

namespace cadre::jinja {
namespace {

using Kind = Value::Kind;

absl::StatusOr<bool> IntegerTest(const std::string& name, const Value& value,
                                 const CallArguments& arguments) {
  if (!value.is_integer()) {
    return TemplateError(absl::StrCat(
        "test `", name, "` needs an integer, not a ", value.TypeName()));
  }
  const int64_t n = value.int_value();
  if (name == "odd") return n % 2 != 0;
  if (name == "even") return n % 2 == 0;
  const Value* divisor = arguments.Get(0, "num");
  if (divisor == nullptr || !divisor->is_integer() ||
      divisor->int_value() == 0) {
    return TemplateError("test `divisibleby` needs an integer other than 0");
  }
  return divisor->int_value() == -1 || n % divisor->int_value() == 0;
}

// Python's str.islower and isupper for ASCII; other letters have no say.
bool HasCase(const std::string& text, bool lower) {
  bool any = false;
  for (char c : text) {
    if (lower ? absl::ascii_isupper(c) : absl::ascii_islower(c)) return false;
    any = any || absl::ascii_isalpha(c);
  }
  return any;
}

}  // namespace

absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value,
                               const CallArguments& arguments) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.Truth();
  if (name == "false") return value.is(Kind::kBool) && !value.Truth();
  if (name == "integer") return value.is(Kind::kInt);
  if (name == "float") return value.is(Kind::kFloat);
  if (name == "number") return value.is_number();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict();
  if (name == "callable") return value.is(Kind::kCallable);
  if (name == "iterable") {
    return value.is_string() || value.is_sequence() || value.is_dict() ||
           value.is_undefined();
  }
  if (name == "sequence") {
    return value.is_string() || value.is_sequence() || value.is_dict() ||
           value.is_undefined();
  }
  if (name == "lower") return HasCase(value.Str(), true);
  if (name == "upper") return HasCase(value.Str(), false);
  if (name == "escaped") return false;
  if (name == "odd" || name == "even" || name == "divisibleby") {
    return IntegerTest(name, value, arguments);
  }
  struct Alias {
    absl::string_view name;
    absl::string_view op;
  };
  static constexpr Alias kComparisons[] = {
      {"eq", "=="},         {"equalto", "=="}, {"==", "=="}, {"ne", "!="},
      {"!=", "!="},         {"lt", "<"},       {"<", "<"},   {"lessthan", "<"},
      {"le", "<="},         {"<=", "<="},      {"gt", ">"},  {">", ">"},
      {"greaterthan", ">"}, {"ge", ">="},      {">=", ">="}, {"in", "in"}};
  for (const Alias& alias : kComparisons) {
    if (alias.name != name) continue;
    if (arguments.positional.size() != 1) {
      return TemplateError(
          absl::StrCat("test `", name, "` needs one argument"));
    }
    return CompareValues(alias.op, value, arguments.positional[0]);
  }
  if (name == "sameas") {
    if (arguments.positional.size() != 1) {
      return TemplateError("test `sameas` needs one argument");
    }
    const Value& other = arguments.positional[0];
    return value.kind() == other.kind() && value.Equals(other);
  }
  return TemplateError(absl::StrCat("no test named `", name, "`"));
}

}  // namespace cadre::jinja
