// Attribute access, indexing, arithmetic and comparison, as Python does them.

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/runtime.h"

namespace cadre::jinja {
namespace {

absl::Status UndefinedError(const Value& value) {
  return TemplateError(absl::StrCat("`", value.string(), "` is undefined"));
}

absl::Status Unsupported(absl::string_view op, const Value& left,
                         const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->is_undefined()) return UndefinedError(*value);
  }
  return TemplateError(absl::StrCat("unsupported operand type(s) for ", op,
                                    ": '", left.TypeName(), "' and '",
                                    right.TypeName(), "'"));
}

absl::StatusOr<Value> Integers(absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "//" || op == "%") {
    if (b == 0) return TemplateError("integer division or modulo by zero");
    if (b == -1) {
      if (op == "%") return Value::Int(0);
      overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      // Python rounds down, C++ towards zero.
      int64_t quotient = a / b;
      int64_t rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        --quotient;
        rest += b;
      }
      result = op == "%" ? rest : quotient;
    }
  } else if (op == "/") {
    if (b == 0) return TemplateError("division by zero");
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  } else {  // **
    if (b < 0) {
      return Value::Float(
          std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
    result = 1;
    if (a == 0 || a == 1 || a == -1) {
      result = b == 0 ? 1 : (a == -1 && b % 2 == 0 ? 1 : a);
    } else {
      for (int64_t i = 0; i < b && !overflow; ++i) {
        overflow = __builtin_mul_overflow(result, a, &result);
      }
    }
  }
  if (overflow) return TemplateError("integer too large");
  return Value::Int(result);
}

absl::StatusOr<Value> Floats(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return TemplateError("float division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return Value::Float(rest);
}

absl::StatusOr<Value> Repeat(const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (sequence.is_string()) {
    const std::string& text = sequence.string();
    if (times > 0 && !text.empty()) {
      CADRE_RETURN_IF_ERROR(CheckStringSize(
          times > kMaxStringBytes ? kMaxStringBytes + 1
                                  : times * static_cast<int64_t>(text.size())));
    }
    std::string out;
    for (int64_t i = 0; i < times && !text.empty(); ++i) out += text;
    return Value::String(std::move(out));
  }
  constexpr int64_t kMaxItems = 1 << 20;
  const int64_t size = static_cast<int64_t>(sequence.list().size());
  if (size > 0 && times > kMaxItems / size) {
    return absl::ResourceExhaustedError("list too long");
  }
  List items;
  for (int64_t i = 0; i < times && size > 0; ++i) {
    items.insert(items.end(), sequence.list().begin(), sequence.list().end());
  }
  return sequence.is(Value::Kind::kTuple) ? Value::MakeTuple(std::move(items))
                                          : Value::MakeList(std::move(items));
}

Value MethodOf(const Value& self, const std::string& name) {
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::kMethod;
  callable->name = name;
  callable->self = self;
  return Value::Of(std::shared_ptr<const Callable>(std::move(callable)));
}

absl::StatusOr<Value> LoopAttribute(const Value& value,
                                    const std::string& name) {
  const LoopState& loop = *value.loop();
  const int64_t length = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::Int(loop.index0 + 1);
  if (name == "index0") return Value::Int(loop.index0);
  if (name == "revindex") return Value::Int(length - loop.index0);
  if (name == "revindex0") return Value::Int(length - loop.index0 - 1);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(loop.index0 + 1 == length);
  if (name == "length") return Value::Int(length);
  // Depth counts recursive loops, which are not supported.
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return loop.index0 > 0 ? (*loop.items)[loop.index0 - 1]
                           : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return loop.index0 + 1 < length ? (*loop.items)[loop.index0 + 1]
                                    : Value::Undefined("there is no next item");
  }
  if (HasMethod(value, name)) return MethodOf(value, name);
  return Value::Undefined(absl::StrCat("loop.", name));
}

}  // namespace

const Value* Scope::Find(absl::string_view name) const {
  for (const Scope* scope = this; scope != nullptr;
       scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(const std::string& name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

const Value* CallArguments::Get(size_t index, absl::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

absl::Status CheckStringSize(int64_t bytes) {
  if (bytes <= kMaxStringBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a text would grow over ", kMaxStringBytes, " bytes"));
}

absl::StatusOr<Value> GetAttribute(const Value& value,
                                   const std::string& name) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      return UndefinedError(value);
    case Value::Kind::kLoop:
      return LoopAttribute(value, name);
    case Value::Kind::kNamespace:
      for (const auto& [key, item] : value.name_space()->variables) {
        if (key == name) return item;
      }
      break;
    default:
      if (HasMethod(value, name)) return MethodOf(value, name);
      if (value.is_dict()) {
        if (const Value* item = value.Find(name)) return *item;
      }
  }
  return Value::Undefined(
      absl::StrCat("attribute ", name, " of a ", value.TypeName()));
}

absl::StatusOr<Value> GetItem(const Value& value, const Value& key) {
  if (value.is_undefined()) return UndefinedError(value);
  if (key.is_integer() && (value.is_sequence() || value.is_string())) {
    CADRE_ASSIGN_OR_RETURN(const int64_t length, value.Length());
    const int64_t index =
        key.int_value() < 0 ? key.int_value() + length : key.int_value();
    if (index < 0 || index >= length) {
      return Value::Undefined(absl::StrCat("item ", key.int_value(), " of a ",
                                           value.TypeName(), " of length ",
                                           length));
    }
    if (value.is_sequence()) return value.list()[index];
    const std::string& text = value.string();
    if (static_cast<int64_t>(text.size()) == length) {
      return Value::String(text.substr(index, 1));
    }
    const std::vector<int64_t> offsets = CharacterOffsets(text);
    return Value::String(
        text.substr(offsets[index], offsets[index + 1] - offsets[index]));
  }
  if (key.is_string()) {
    if (value.is_dict()) {
      if (const Value* item = value.Find(key.string())) return *item;
    }
    if (HasMethod(value, key.string()) || value.is(Value::Kind::kLoop) ||
        value.is(Value::Kind::kNamespace)) {
      return GetAttribute(value, key.string());
    }
  }
  return Value::Undefined(
      absl::StrCat("item ", key.Repr(), " of a ", value.TypeName()));
}

absl::StatusOr<Value> GetSlice(const Value& value, const Value& begin,
                               const Value& end, const Value& step) {
  if (value.is_undefined()) return UndefinedError(value);
  if (!value.is_string() && !value.is_sequence()) {
    return TemplateError(
        absl::StrCat("'", value.TypeName(), "' object cannot be sliced"));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->is_integer()) {
      return TemplateError("slice indices must be integers or None");
    }
  }
  CADRE_ASSIGN_OR_RETURN(const int64_t length, value.Length());
  const int64_t stride = step.is_none() ? 1 : step.int_value();
  if (stride == 0) return TemplateError("slice step cannot be zero");
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? length : length - 1;
  const auto clamp = [&](const Value& bound, int64_t absent) {
    if (bound.is_none()) return absent;
    int64_t index = bound.int_value();
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, low, std::max(low, high));
  };
  const int64_t from = clamp(begin, stride > 0 ? low : high);
  const int64_t to = clamp(end, stride > 0 ? high : low);
  std::vector<int64_t> picked;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    picked.push_back(i);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (value.is_string()) {
    const std::vector<int64_t> offsets = CharacterOffsets(value.string());
    std::string out;
    for (int64_t i : picked) {
      out.append(value.string(), offsets[i], offsets[i + 1] - offsets[i]);
    }
    return Value::String(std::move(out));
  }
  List items;
  for (int64_t i : picked) items.push_back(value.list()[i]);
  return value.is(Value::Kind::kTuple) ? Value::MakeTuple(std::move(items))
                                       : Value::MakeList(std::move(items));
}

absl::StatusOr<Value> Unary(absl::string_view op, const Value& value) {
  if (value.is(Value::Kind::kFloat)) {
    return Value::Float(op == "-" ? -value.number() : value.number());
  }
  if (value.is_integer()) {
    return Integers(op, 0, value.int_value());
  }
  if (value.is_undefined()) return UndefinedError(value);
  return TemplateError(absl::StrCat("bad operand type for unary ", op, ": '",
                                    value.TypeName(), "'"));
}

absl::StatusOr<Value> Binary(absl::string_view op, const Value& left,
                             const Value& right) {
  if (op == "~") {
    std::string text = left.Str();
    const std::string tail = right.Str();
    CADRE_RETURN_IF_ERROR(
        CheckStringSize(static_cast<int64_t>(text.size() + tail.size())));
    return Value::String(text + tail);
  }
  if (left.is_integer() && right.is_integer()) {
    return Integers(op, left.int_value(), right.int_value());
  }
  if (left.is_number() && right.is_number()) {
    return Floats(op, left.number(), right.number());
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    CADRE_RETURN_IF_ERROR(CheckStringSize(
        static_cast<int64_t>(left.string().size() + right.string().size())));
    return Value::String(left.string() + right.string());
  }
  if (op == "+" && left.is_sequence() && left.kind() == right.kind()) {
    List items = left.list();
    items.insert(items.end(), right.list().begin(), right.list().end());
    return left.is(Value::Kind::kTuple) ? Value::MakeTuple(std::move(items))
                                        : Value::MakeList(std::move(items));
  }
  if (op == "*") {
    const bool left_sequence = left.is_string() || left.is_sequence();
    if (left_sequence && right.is_integer()) {
      return Repeat(left, right.int_value());
    }
    if ((right.is_string() || right.is_sequence()) && left.is_integer()) {
      return Repeat(right, left.int_value());
    }
  }
  if (op == "%" && left.is_string() && !right.is_undefined()) {
    CallArguments arguments;
    arguments.positional =
        right.is(Value::Kind::kTuple) ? right.list() : List{right};
    return ApplyFilter("format", left, arguments);
  }
  return Unsupported(op, left, right);
}

absl::StatusOr<bool> CompareValues(absl::string_view op, const Value& left,
                                   const Value& right) {
  if (op == "==") return left.Equals(right);
  if (op == "!=") return !left.Equals(right);
  if (op == "in" || op == "not in") {
    bool found = false;
    if (right.is_string()) {
      if (!left.is_string()) {
        return TemplateError(
            absl::StrCat("'in <string>' requires string as left operand, not ",
                         left.TypeName()));
      }
      found = right.string().find(left.string()) != std::string::npos;
    } else if (right.is_dict()) {
      found = left.is_string() && right.Find(left.string()) != nullptr;
    } else {
      if (!right.is_sequence() && !right.is_undefined()) {
        return TemplateError(absl::StrCat(
            "argument of type '", right.TypeName(), "' is not iterable"));
      }
      if (right.is_sequence()) {
        found =
            std::any_of(right.list().begin(), right.list().end(),
                        [&](const Value& item) { return item.Equals(left); });
      }
    }
    return (op == "in") == found;
  }
  CADRE_ASSIGN_OR_RETURN(const int order, left.Compare(right));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

}  // namespace cadre::jinja
