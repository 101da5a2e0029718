#include "base/text/jinja/string_methods.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/text_case.h"

namespace cadre::jinja {
namespace {

constexpr absl::string_view kStringMethods[] = {
    "strip",     "lstrip",     "rstrip",     "split",        "rsplit",
    "upper",     "lower",      "startswith", "endswith",     "replace",
    "find",      "rfind",      "index",      "count",        "join",
    "title",     "capitalize", "splitlines", "removeprefix", "removesuffix",
    "isdigit",   "isalpha",    "isalnum",    "isspace",      "format",
    "partition", "rpartition", "isupper",    "islower",      "zfill"};

Value Strings(std::vector<std::string> parts) {
  List items;
  for (std::string& part : parts) {
    items.push_back(Value::String(std::move(part)));
  }
  return Value::MakeList(std::move(items));
}

// str.split() without a separator: runs of white space, none at the ends.
std::vector<std::string> SplitWords(const std::string& text, int64_t limit,
                                    bool from_right) {
  const std::vector<int64_t> offsets = CharacterOffsets(text);
  std::vector<std::string> words;
  const int64_t n = static_cast<int64_t>(offsets.size()) - 1;
  const auto space = [&](int64_t i) {
    const std::string one =
        text.substr(offsets[i], offsets[i + 1] - offsets[i]);
    return Strip(one, Side::kBoth).empty();
  };
  const auto take = [&](int64_t from, int64_t to) {
    words.push_back(text.substr(offsets[from], offsets[to] - offsets[from]));
  };
  if (!from_right) {
    for (int64_t i = 0; i < n;) {
      while (i < n && space(i)) ++i;
      if (i == n) break;
      if (limit >= 0 && static_cast<int64_t>(words.size()) == limit) {
        words.push_back(text.substr(offsets[i]));
        break;
      }
      int64_t end = i;
      while (end < n && !space(end)) ++end;
      take(i, end);
      i = end;
    }
    return words;
  }
  for (int64_t i = n; i > 0;) {
    while (i > 0 && space(i - 1)) --i;
    if (i == 0) break;
    if (limit >= 0 && static_cast<int64_t>(words.size()) == limit) {
      words.push_back(text.substr(0, offsets[i]));
      break;
    }
    int64_t begin = i;
    while (begin > 0 && !space(begin - 1)) --begin;
    take(begin, i);
    i = begin;
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::vector<std::string> SplitBy(const std::string& text,
                                 const std::string& separator, int64_t limit,
                                 bool from_right) {
  std::vector<std::string> parts;
  if (!from_right) {
    size_t begin = 0;
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      const size_t found = text.find(separator, begin);
      if (found == std::string::npos) break;
      parts.push_back(text.substr(begin, found - begin));
      begin = found + separator.size();
    }
    parts.push_back(text.substr(begin));
    return parts;
  }
  size_t end = text.size();
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    if (end < separator.size()) break;
    const size_t found = text.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    parts.push_back(
        text.substr(found + separator.size(), end - found - separator.size()));
    end = found;
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(const std::string& text, bool keep_ends) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find_first_of("\r\n", begin);
    size_t next = text.size();
    if (end == std::string::npos) {
      end = text.size();
    } else {
      next = end + 1;
      if (text[end] == '\r' && next < text.size() && text[next] == '\n') {
        ++next;
      }
    }
    lines.push_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return lines;
}

int64_t CharactersBefore(const std::string& text, size_t bytes) {
  return std::count_if(text.begin(), text.begin() + bytes, [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
}

// startswith and endswith take one text or a tuple of them.
absl::StatusOr<bool> HasEdge(const std::string& text, const Value* affix,
                             bool front) {
  if (affix == nullptr) return TemplateError("a prefix or suffix is missing");
  const List single = {*affix};
  const List& options = affix->is(Value::Kind::kTuple) ? affix->list() : single;
  for (const Value& option : options) {
    if (!option.is_string()) {
      return TemplateError(absl::StrCat(
          front ? "startswith" : "endswith",
          " first arg must be str or a tuple of str, not ", option.TypeName()));
    }
    if (front ? absl::StartsWith(text, option.string())
              : absl::EndsWith(text, option.string())) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<Value> SearchMethod(const std::string& text,
                                   const std::string& name,
                                   const std::string& needle) {
  if (name == "count") {
    if (needle.empty()) {
      return Value::Int(CharactersBefore(text, text.size()) + 1);
    }
    int64_t count = 0;
    for (size_t at = text.find(needle); at != std::string::npos;
         at = text.find(needle, at + needle.size())) {
      ++count;
    }
    return Value::Int(count);
  }
  const size_t at = name == "rfind" ? text.rfind(needle) : text.find(needle);
  if (at != std::string::npos) return Value::Int(CharactersBefore(text, at));
  if (name == "index") return TemplateError("substring not found");
  return Value::Int(-1);
}

absl::StatusOr<Value> SplitMethod(const std::string& text, bool from_right,
                                  const CallArguments& arguments) {
  const Value* separator = arguments.Get(0, "sep");
  const Value* limit = arguments.Get(1, "maxsplit");
  if (limit != nullptr && !limit->is_integer()) {
    return TemplateError("maxsplit must be an integer");
  }
  const int64_t count = limit == nullptr ? -1 : limit->int_value();
  if (separator == nullptr || separator->is_none()) {
    return Strings(SplitWords(text, count, from_right));
  }
  if (!separator->is_string() || separator->string().empty()) {
    return TemplateError("split needs a separator that is not empty");
  }
  return Strings(SplitBy(text, separator->string(), count, from_right));
}

absl::StatusOr<Value> Partition(const std::string& text,
                                const std::string& separator, bool last) {
  if (separator.empty()) return TemplateError("empty separator");
  const size_t at = last ? text.rfind(separator) : text.find(separator);
  std::vector<std::string> parts = {text, "", ""};
  if (at != std::string::npos) {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  } else if (last) {
    parts = {"", "", text};
  }
  return Value::MakeTuple(Strings(std::move(parts)).list());
}

// '{} {0} {name}'.format(...) with plain fields.
absl::StatusOr<Value> Format(const std::string& text,
                             const CallArguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      out.push_back(c);
      ++i;
      continue;
    }
    if (c == '}') return TemplateError("format: single '}'");
    if (c != '{') {
      out.push_back(c);
      continue;
    }
    const size_t end = text.find('}', i);
    if (end == std::string::npos) return TemplateError("format: single '{'");
    const std::string field = text.substr(i + 1, end - i - 1);
    const Value* value = nullptr;
    if (field.empty()) {
      value = arguments.Get(next++, "");
    } else if (field.size() <= 3 &&
               field.find_first_not_of("0123456789") == std::string::npos) {
      value = arguments.Get(std::stoul(field), "");
    } else {
      value = arguments.Get(arguments.positional.size(), field);
    }
    if (value == nullptr) {
      return TemplateError(
          absl::StrCat("format: nothing for the field {", field, "}"));
    }
    out += value->Str();
    CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
    i = end;
  }
  return Value::String(std::move(out));
}

}  // namespace

bool HasStringMethod(absl::string_view name) {
  return std::find(std::begin(kStringMethods), std::end(kStringMethods),
                   name) != std::end(kStringMethods);
}

absl::StatusOr<Value> StringMethod(const std::string& text,
                                   const std::string& name,
                                   const CallArguments& arguments) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Side side = name == "strip"    ? Side::kBoth
                      : name == "lstrip" ? Side::kLeft
                                         : Side::kRight;
    const Value* characters = arguments.Get(0, "chars");
    if (characters == nullptr || characters->is_none()) {
      return Value::String(Strip(text, side));
    }
    if (!characters->is_string()) {
      return TemplateError(absl::StrCat(name, " arg must be None or str"));
    }
    return Value::String(Strip(text, side, characters->string()));
  }
  if (name == "split" || name == "rsplit") {
    return SplitMethod(text, name == "rsplit", arguments);
  }
  if (name == "upper") return Value::String(ToUpper(text));
  if (name == "lower") return Value::String(ToLower(text));
  if (name == "title") return Value::String(ToTitle(text));
  if (name == "capitalize") return Value::String(Capitalize(text));
  if (name == "startswith" || name == "endswith") {
    CADRE_ASSIGN_OR_RETURN(
        const bool has,
        HasEdge(text, arguments.Get(0, "prefix"), name == "startswith"));
    return Value::Bool(has);
  }
  if (name == "replace" || name == "join") {
    return ApplyFilter(name == "join" ? "$join" : "replace",
                       Value::String(text), arguments);
  }
  if (name == "splitlines") {
    const Value* keep = arguments.Get(0, "keepends");
    return Strings(SplitLines(text, keep != nullptr && keep->Truth()));
  }
  if (name == "format") return Format(text, arguments);
  if (name == "isdigit" || name == "isalpha" || name == "isalnum" ||
      name == "isspace" || name == "isupper" || name == "islower") {
    return Value::Bool(IsAll(text, name));
  }
  if (name == "zfill") {
    const Value* width = arguments.Get(0, "width");
    if (width == nullptr || !width->is_integer()) {
      return TemplateError("zfill needs a width");
    }
    CADRE_RETURN_IF_ERROR(CheckStringSize(width->int_value()));
    const int64_t missing =
        width->int_value() - CharactersBefore(text, text.size());
    if (missing <= 0) return Value::String(text);
    const size_t sign =
        !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    return Value::String(text.substr(0, sign) + std::string(missing, '0') +
                         text.substr(sign));
  }
  const Value* operand = arguments.Get(0, "sub");
  if (operand == nullptr || !operand->is_string()) {
    return TemplateError(absl::StrCat(name, " needs a text"));
  }
  const std::string& other = operand->string();
  if (name == "partition" || name == "rpartition") {
    return Partition(text, other, name == "rpartition");
  }
  if (name == "removeprefix") {
    return Value::String(
        absl::StartsWith(text, other) ? text.substr(other.size()) : text);
  }
  if (name == "removesuffix") {
    return Value::String(absl::EndsWith(text, other)
                             ? text.substr(0, text.size() - other.size())
                             : text);
  }
  return SearchMethod(text, name, other);
}

}  // namespace cadre::jinja
