#include "base/text/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text/jinja/runtime.h"
#include "base/text/utf8.h"

namespace cadre::jinja {
namespace {

// Sums stop here, far above every limit and far from overflow.
constexpr int64_t kMaxWeight = int64_t{1} << 60;

bool IsPrintable(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code_point == ' ';
    default:
      return true;
  }
}

std::string ReprString(absl::string_view text) {
  const bool single = text.find('\'') == absl::string_view::npos ||
                      text.find('"') != absl::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t pos = 0; pos < size;) {
    const uint32_t c = NextCodePoint(text, &pos);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else if (c < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", c);
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      absl::StrAppendFormat(&out, "\\U%08x", c);
    }
  }
  out.push_back(quote);
  return out;
}

}  // namespace

absl::Status TemplateError(absl::string_view message) {
  return absl::InvalidArgumentError(message);
}

std::vector<int64_t> CharacterOffsets(absl::string_view text) {
  std::vector<int64_t> offsets;
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t pos = 0; pos < size;) {
    offsets.push_back(pos);
    NextCodePoint(text, &pos);
  }
  offsets.push_back(size);
  return offsets;
}

bool IsPythonSpace(uint32_t c) {
  if ((c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85) {
    return true;
  }
  if (c < 0x80) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return false;
  }
}

std::string Strip(absl::string_view text, Side side,
                  std::optional<absl::string_view> characters) {
  std::vector<uint32_t> set;
  if (characters.has_value()) {
    const int64_t size = static_cast<int64_t>(characters->size());
    for (int64_t pos = 0; pos < size;) {
      set.push_back(NextCodePoint(*characters, &pos));
    }
  }
  const auto strips = [&](uint32_t c) {
    if (!characters.has_value()) return IsPythonSpace(c);
    return std::find(set.begin(), set.end(), c) != set.end();
  };
  int64_t begin = 0;
  int64_t end = static_cast<int64_t>(text.size());
  while (side != Side::kRight && begin < end) {
    int64_t next = begin;
    if (!strips(NextCodePoint(text, &next))) break;
    begin = next;
  }
  while (side != Side::kLeft && begin < end) {
    int64_t previous = end - 1;
    while ((static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80) {
      --previous;
    }
    int64_t at = previous;
    if (!strips(NextCodePoint(text, &at))) break;
    end = previous;
  }
  return std::string(text.substr(begin, end - begin));
}

Value Value::Undefined(std::string name) {
  Value value = String(std::move(name));
  value.kind_ = Kind::kUndefined;
  return value;
}
Value Value::Bool(bool b) {
  Value value;
  value.kind_ = Kind::kBool;
  value.int_ = b;
  return value;
}
Value Value::Int(int64_t i) {
  Value value;
  value.kind_ = Kind::kInt;
  value.int_ = i;
  return value;
}
Value Value::Float(double f) {
  Value value;
  value.kind_ = Kind::kFloat;
  value.float_ = f;
  return value;
}
Value Value::String(std::string s) {
  Value value;
  value.kind_ = Kind::kString;
  value.weight_ = 1 + static_cast<int64_t>(s.size()) / 16;
  value.string_ = std::make_shared<const std::string>(std::move(s));
  return value;
}
Value Value::MakeList(List items) {
  Value value;
  value.kind_ = Kind::kList;
  for (const Value& item : items) {
    value.weight_ = std::min(kMaxWeight, value.weight_ + item.weight_);
    value.depth_ = std::max(value.depth_, item.depth_ + 1);
    value.holds_namespace_ |= item.holds_namespace_;
  }
  value.list_ = std::make_shared<const List>(std::move(items));
  return value;
}
Value Value::MakeTuple(List items) {
  Value value = MakeList(std::move(items));
  value.kind_ = Kind::kTuple;
  return value;
}
Value Value::MakeDict(Dict entries) {
  Value value;
  value.kind_ = Kind::kDict;
  for (const auto& [key, item] : entries) {
    value.weight_ =
        std::min(kMaxWeight, value.weight_ + item.weight_ +
                                 static_cast<int64_t>(key.size()) / 16);
    value.depth_ = std::max(value.depth_, item.depth_ + 1);
    value.holds_namespace_ |= item.holds_namespace_;
  }
  value.dict_ = std::make_shared<const Dict>(std::move(entries));
  return value;
}
Value Value::Of(std::shared_ptr<Namespace> n) {
  Value value;
  value.kind_ = Kind::kNamespace;
  value.namespace_ = std::move(n);
  value.holds_namespace_ = true;
  return value;
}
Value Value::Of(std::shared_ptr<LoopState> l) {
  Value value;
  value.kind_ = Kind::kLoop;
  value.loop_ = std::move(l);
  value.holds_namespace_ = true;  // its items may
  return value;
}
Value Value::Of(std::shared_ptr<const Callable> c) {
  Value value;
  value.kind_ = Kind::kCallable;
  value.holds_namespace_ = c->self.HoldsNamespace();
  value.callable_ = std::move(c);
  return value;
}

Value Value::FromJson(const Json& json) {
  switch (json.type()) {
    case Json::Type::kNull:
      return Value();
    case Json::Type::kBool:
      return Bool(json.bool_value());
    case Json::Type::kInt:
      return Int(json.int_value());
    case Json::Type::kFloat:
      return Float(json.number_value());
    case Json::Type::kString:
      return String(json.string_value());
    case Json::Type::kArray: {
      List items;
      items.reserve(json.items().size());
      for (const Json& item : json.items()) items.push_back(FromJson(item));
      return MakeList(std::move(items));
    }
    case Json::Type::kObject: {
      Dict entries;
      entries.reserve(json.members().size());
      for (const Json::Member& member : json.members()) {
        entries.emplace_back(member.key, FromJson(member.value));
      }
      return MakeDict(std::move(entries));
    }
  }
  return Value();
}

absl::string_view Value::TypeName() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "";
}

const Value* Value::Find(absl::string_view key) const {
  for (const auto& [name, value] : dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Value::Truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kString:
      return !string_->empty();
    case Kind::kList:
    case Kind::kTuple:
      return !list_->empty();
    case Kind::kDict:
      return !dict_->empty();
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      return true;
  }
  return false;
}

std::string Value::Str() const {
  if (is_undefined()) return "";
  return is_string() ? *string_ : Repr();
}

std::string Value::Repr() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return int_ != 0 ? "True" : "False";
    case Kind::kInt:
      return absl::StrCat(int_);
    case Kind::kFloat:
      return WriteFloat(float_);
    case Kind::kString:
      return ReprString(*string_);
    case Kind::kList:
    case Kind::kTuple: {
      const bool tuple = is(Kind::kTuple);
      std::string out = tuple ? "(" : "[";
      for (size_t i = 0; i < list_->size(); ++i) {
        if (i > 0) out += ", ";
        out += (*list_)[i].Repr();
      }
      if (tuple && list_->size() == 1) out += ",";
      return out + (tuple ? ")" : "]");
    }
    case Kind::kDict: {
      std::string out = "{";
      for (const auto& [key, value] : *dict_) {
        if (out.size() > 1) out += ", ";
        absl::StrAppend(&out, ReprString(key), ": ", value.Repr());
      }
      return out + "}";
    }
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      break;
  }
  return absl::StrCat("<", TypeName(), ">");
}

}  // namespace cadre::jinja
