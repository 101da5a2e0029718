// The filters behind `|`.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/jinja/collection_filters.h"
#include "base/text/jinja/runtime.h"
#include "base/text/jinja/text_case.h"
#include "base/text/json.h"

namespace cadre::jinja {
namespace {

using Kind = Value::Kind;
using Result = absl::StatusOr<Value>;

constexpr int kMaxFilterDepth = 4;

Result Text(std::string text) { return Value::String(std::move(text)); }

Result Replace(const std::string& text, const CallArguments& arguments) {
  const Value* from = arguments.Get(0, "old");
  const Value* to = arguments.Get(1, "new");
  const Value* count = arguments.Get(2, "count");
  if (from == nullptr || to == nullptr) {
    return TemplateError("replace needs an old and a new text");
  }
  int64_t left =
      count == nullptr || !count->is_integer() || count->int_value() < 0
          ? static_cast<int64_t>(text.size()) + 1
          : count->int_value();
  const std::string old_text = from->Str();
  const std::string new_text = to->Str();
  std::string out;
  size_t begin = 0;
  if (old_text.empty()) {
    const std::vector<int64_t> offsets = CharacterOffsets(text);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (left-- > 0) out += new_text;
      if (i + 1 < offsets.size()) {
        out.append(text, offsets[i], offsets[i + 1] - offsets[i]);
      }
      CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
    }
    return Text(std::move(out));
  }
  while (left-- > 0) {
    const size_t found = text.find(old_text, begin);
    if (found == std::string::npos) break;
    out.append(text, begin, found - begin);
    out += new_text;
    CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
    begin = found + old_text.size();
  }
  out.append(text, begin, std::string::npos);
  return Text(std::move(out));
}

absl::StatusOr<Json> SortKeys(Json json) {
  for (Json& item : json.mutable_items()) {
    CADRE_ASSIGN_OR_RETURN(item, SortKeys(std::move(item)));
  }
  for (Json::Member& member : json.mutable_members()) {
    CADRE_ASSIGN_OR_RETURN(member.value, SortKeys(std::move(member.value)));
  }
  std::sort(json.mutable_members().begin(), json.mutable_members().end(),
            [](const Json::Member& a, const Json::Member& b) {
              return a.key < b.key;
            });
  return json;
}

// As chat templates get it from Hugging Face: json.dumps with
// ensure_ascii=False, no HTML escapes.
Result ToJsonText(const Value& value, const CallArguments& arguments) {
  CADRE_ASSIGN_OR_RETURN(Json json, value.ToJson());
  const Value* ascii = arguments.Get(0, "ensure_ascii");
  const Value* indent = arguments.Get(1, "indent");
  const Value* separators = arguments.Get(2, "separators");
  // tojson(2) is Jinja's own signature: indent first.
  if (ascii != nullptr && ascii->is(Kind::kInt)) {
    indent = ascii;
  } else if (ascii != nullptr && ascii->Truth()) {
    return TemplateError("tojson: ensure_ascii=true is not supported");
  }
  if (Flag(arguments, 3, "sort_keys")) {
    CADRE_ASSIGN_OR_RETURN(json, SortKeys(std::move(json)));
  }
  JsonStyle style;
  if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_integer() || indent->int_value() < 0 ||
        indent->int_value() > 16) {
      return TemplateError("tojson: indent must be 0 to 16");
    }
    style.indent = static_cast<int>(indent->int_value());
    style.item_separator = std::string(1, ',');
  }
  if (separators != nullptr && !separators->is_none()) {
    if (!separators->is_sequence() || separators->list().size() != 2) {
      return TemplateError("tojson: separators must be two texts");
    }
    style.item_separator = separators->list()[0].Str();
    style.key_separator = separators->list()[1].Str();
  }
  return Text(WriteJson(json, style));
}

Result Indent(const std::string& text, const CallArguments& arguments) {
  const Value* width = arguments.Get(0, "width");
  std::string margin = "    ";
  if (width != nullptr && width->is_string()) {
    margin = width->string();
  } else if (width != nullptr && width->is_integer()) {
    CADRE_RETURN_IF_ERROR(CheckStringSize(width->int_value()));
    margin = std::string(std::max<int64_t>(width->int_value(), 0), ' ');
  }
  const bool first = Flag(arguments, 1, "first");
  const bool blank = Flag(arguments, 2, "blank");
  std::string out;
  bool first_line = true;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (!first_line) out += "\n";
    if (first_line ? first : (blank || !line.empty())) out += margin;
    out += line;
    CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
    first_line = false;
  }
  return Text(std::move(out));
}

// The % operator's conversions that texts need.
Result Format(const std::string& text, const CallArguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    size_t end = text.find_first_not_of("0123456789.-+ #", i + 1);
    if (end == std::string::npos) return TemplateError("incomplete format");
    const std::string spec = text.substr(i + 1, end - i - 1);
    const char conversion = text[end];
    i = end;
    if (conversion == '%') {
      out.push_back('%');
      continue;
    }
    if (next >= arguments.positional.size()) {
      return TemplateError("not enough arguments for format string");
    }
    const Value& value = arguments.positional[next++];
    // A precision or width of many digits would make a huge text.
    if (spec.size() > 6) return TemplateError("format too long");
    if (conversion == 's' || conversion == 'r') {
      const std::string shown = conversion == 's' ? value.Str() : value.Repr();
      if (!spec.empty()) return TemplateError("%s takes no width here");
      out += shown;
    } else if ((conversion == 'd' || conversion == 'i') && value.is_number()) {
      const int64_t number =
          value.is(Kind::kFloat)
              ? static_cast<int64_t>(std::clamp(value.number(), -9e18, 9e18))
              : value.int_value();
      const auto format =
          absl::ParsedFormat<'d'>::New(absl::StrCat("%", spec, "d"));
      if (format == nullptr) return TemplateError("bad format");
      out += absl::StrFormat(*format, number);
    } else if ((conversion == 'f' || conversion == 'F') && value.is_number()) {
      const auto format =
          absl::ParsedFormat<'f'>::New(absl::StrCat("%", spec, "f"));
      if (format == nullptr) return TemplateError("bad format");
      out += absl::StrFormat(*format, value.number());
    } else {
      return TemplateError(absl::StrCat("format %", std::string(1, conversion),
                                        " does not take a ", value.TypeName()));
    }
    CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
  }
  return Text(std::move(out));
}

Result ToInt(const Value& value, const CallArguments& arguments) {
  const Value* fallback = arguments.Get(0, "default");
  const Value other = fallback == nullptr ? Value::Int(0) : *fallback;
  if (value.is_integer()) return Value::Int(value.int_value());
  double number = value.number();
  if (value.is_string()) {
    const std::string text = Strip(value.string(), Side::kBoth);
    int64_t integer = 0;
    if (absl::SimpleAtoi(text, &integer)) return Value::Int(integer);
    if (!absl::SimpleAtod(text, &number)) return other;
  } else if (!value.is(Kind::kFloat)) {
    return other;
  }
  if (!std::isfinite(number) || std::fabs(number) > 9e18) return other;
  return Value::Int(static_cast<int64_t>(number));
}

Result ToFloat(const Value& value, const CallArguments& arguments) {
  const Value* fallback = arguments.Get(0, "default");
  if (value.is_number()) return Value::Float(value.number());
  double number = 0;
  if (value.is_string() &&
      absl::SimpleAtod(Strip(value.string(), Side::kBoth), &number)) {
    return Value::Float(number);
  }
  return fallback == nullptr ? Value::Float(0) : *fallback;
}

Result Round(const Value& value, const CallArguments& arguments) {
  if (!value.is_number()) {
    return TemplateError(
        absl::StrCat("round needs a number, not a ", value.TypeName()));
  }
  const Value* precision = arguments.Get(0, "precision");
  const Value* method = arguments.Get(1, "method");
  const std::string how = method == nullptr ? "common" : method->Str();
  const double scale =
      std::pow(10.0, precision == nullptr ? 0.0 : precision->number());
  const double scaled = value.number() * scale;
  if (how == "ceil") return Value::Float(std::ceil(scaled) / scale);
  if (how == "floor") return Value::Float(std::floor(scaled) / scale);
  if (how != "common") return TemplateError("round: unknown method");
  return Value::Float(std::nearbyint(scaled) / scale);
}

std::string EscapeHtml(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

Result Default(const Value& value, const CallArguments& arguments) {
  const Value* fallback = arguments.Get(0, "default_value");
  const bool falsy = Flag(arguments, 1, "boolean");
  if (!value.is_undefined() && (!falsy || value.Truth())) return value;
  return fallback == nullptr ? Value::String("") : *fallback;
}

Result Trim(const Value& value, const CallArguments& arguments) {
  const Value* characters = arguments.Get(0, "chars");
  if (characters != nullptr && characters->is_string()) {
    return Text(Strip(value.Str(), Side::kBoth, characters->string()));
  }
  return Text(Strip(value.Str(), Side::kBoth));
}

Result Abs(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::Float(std::fabs(value.number()));
  if (value.is_integer()) {
    return value.int_value() < 0 ? Unary("-", value)
                                 : Value::Int(value.int_value());
  }
  return TemplateError(
      absl::StrCat("bad operand type for abs(): '", value.TypeName(), "'"));
}

using Filter =
    std::function<Result(const Value&, const CallArguments&, int depth)>;

const std::map<std::string, Filter, std::less<>>& Filters() {
  using V = const Value&;
  using A = const CallArguments&;
  static const auto* const kFilters =
      new std::map<std::string, Filter, std::less<>>{
          {"abs", [](V v, A, int) { return Abs(v); }},
          {"batch", [](V v, A a, int) { return Batch(v, a); }},
          {"capitalize", [](V v, A, int) { return Text(Capitalize(v.Str())); }},
          {"count",
           [](V v, A, int) -> Result {
             CADRE_ASSIGN_OR_RETURN(const int64_t length, v.Length());
             return Value::Int(length);
           }},
          {"default", [](V v, A a, int) { return Default(v, a); }},
          {"dictsort", [](V v, A a, int) { return DictSort(v, a); }},
          {"escape", [](V v, A, int) { return Text(EscapeHtml(v.Str())); }},
          {"first", [](V v, A, int) { return FirstOrLast(v, true); }},
          {"float", [](V v, A a, int) { return ToFloat(v, a); }},
          {"format", [](V v, A a, int) { return Format(v.Str(), a); }},
          {"groupby", [](V v, A a, int) { return GroupBy(v, a); }},
          {"indent", [](V v, A a, int) { return Indent(v.Str(), a); }},
          {"int", [](V v, A a, int) { return ToInt(v, a); }},
          {"items", [](V v, A, int) { return Items(v); }},
          {"join",
           [](V v, A a, int) {
             const Value* separator = a.Get(0, "d");
             return Join(v, separator == nullptr ? "" : separator->Str(),
                         a.Get(1, "attribute"), false);
           }},
          // The method of strings: ', '.join(list).
          {"$join",
           [](V v, A a, int) -> Result {
             const Value* items = a.Get(0, "iterable");
             if (items == nullptr) return TemplateError("join needs a list");
             return Join(*items, v.Str(), nullptr, true);
           }},
          {"last", [](V v, A, int) { return FirstOrLast(v, false); }},
          {"list",
           [](V v, A, int) -> Result {
             CADRE_ASSIGN_OR_RETURN(List items, v.Iterate());
             return Value::MakeList(std::move(items));
           }},
          {"lower", [](V v, A, int) { return Text(ToLower(v.Str())); }},
          {"map", [](V v, A a, int depth) { return Map(v, a, depth); }},
          {"max", [](V v, A a, int) { return Extreme(v, a, true); }},
          {"min", [](V v, A a, int) { return Extreme(v, a, false); }},
          {"reject", [](V v, A a, int) { return Select(v, a, false, false); }},
          {"rejectattr",
           [](V v, A a, int) { return Select(v, a, false, true); }},
          {"replace", [](V v, A a, int) { return Replace(v.Str(), a); }},
          {"reverse", [](V v, A, int) { return Reverse(v); }},
          {"round", [](V v, A a, int) { return Round(v, a); }},
          {"safe", [](V v, A, int) { return Text(v.Str()); }},
          {"select", [](V v, A a, int) { return Select(v, a, true, false); }},
          {"selectattr",
           [](V v, A a, int) { return Select(v, a, true, true); }},
          {"sort", [](V v, A a, int) { return Sort(v, a); }},
          {"string", [](V v, A, int) { return Text(v.Str()); }},
          {"sum", [](V v, A a, int) { return Sum(v, a); }},
          {"title", [](V v, A, int) { return Text(ToTitle(v.Str())); }},
          {"tojson", [](V v, A a, int) { return ToJsonText(v, a); }},
          {"trim", [](V v, A a, int) { return Trim(v, a); }},
          {"unique", [](V v, A a, int) { return Unique(v, a); }},
          {"upper", [](V v, A, int) { return Text(ToUpper(v.Str())); }},
          {"wordcount",
           [](V v, A, int) -> Result {
             CADRE_ASSIGN_OR_RETURN(
                 const Value words,
                 CallMethod(Value::String(v.Str()), "split", {}));
             return Value::Int(static_cast<int64_t>(words.list().size()));
           }},
      };
  return *kFilters;
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value,
                                  const CallArguments& arguments, int depth) {
  if (depth > kMaxFilterDepth) {
    return absl::ResourceExhaustedError("filters nested too deep");
  }
  static constexpr std::pair<absl::string_view, absl::string_view> kAliases[] =
      {{"d", "default"}, {"e", "escape"}, {"length", "count"}};
  std::string target = name;
  for (const auto& [alias, full] : kAliases) {
    if (alias == name) target = std::string(full);
  }
  const auto it = Filters().find(target);
  if (it == Filters().end()) {
    return TemplateError(absl::StrCat("no filter named `", name, "`"));
  }
  return it->second(value, arguments, depth);
}

}  // namespace cadre::jinja
