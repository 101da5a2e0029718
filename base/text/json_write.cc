#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/text/json.h"

namespace cadre {

std::string WriteJsonString(absl::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out.push_back(kHex[c >> 4]);
          out.push_back(kHex[c & 15]);
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
  return out;
}

std::string WriteFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const double magnitude = std::fabs(value);
  // repr's switch to exponents; to_chars writes at least two exponent digits
  // with a sign, as Python does.
  const bool scientific =
      magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto [end, ec] = std::to_chars(
      buffer, buffer + sizeof(buffer), value,
      scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string out(buffer, end);
  if (!scientific && out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

void Write(const Json& value, const JsonStyle& style, int depth,
           std::string* out) {
  const auto new_line = [&](int levels) {
    out->push_back('\n');
    out->append(static_cast<size_t>(style.indent) * levels, ' ');
  };
  const bool pretty = style.indent >= 0;
  switch (value.type()) {
    case Json::Type::kNull:
      *out += "null";
      return;
    case Json::Type::kBool:
      *out += value.bool_value() ? "true" : "false";
      return;
    case Json::Type::kInt:
      absl::StrAppend(out, value.int_value());
      return;
    case Json::Type::kFloat: {
      const double number = value.number_value();
      if (std::isnan(number)) {
        *out += "NaN";
      } else if (std::isinf(number)) {
        *out += number < 0 ? "-Infinity" : "Infinity";
      } else {
        *out += WriteFloat(number);
      }
      return;
    }
    case Json::Type::kString:
      *out += WriteJsonString(value.string_value());
      return;
    case Json::Type::kArray:
    case Json::Type::kObject:
      break;
  }
  const bool array = value.is_array();
  const int64_t n = static_cast<int64_t>(array ? value.items().size()
                                               : value.members().size());
  out->push_back(array ? '[' : '{');
  for (int64_t i = 0; i < n; ++i) {
    if (i > 0) *out += style.item_separator;
    if (pretty) new_line(depth + 1);
    if (!array) {
      *out += WriteJsonString(value.members()[i].key);
      *out += style.key_separator;
    }
    Write(array ? value.items()[i] : value.members()[i].value, style, depth + 1,
          out);
  }
  if (pretty && n > 0) new_line(depth);
  out->push_back(array ? ']' : '}');
}

}  // namespace

std::string WriteJson(const Json& value, const JsonStyle& style) {
  std::string out;
  Write(value, style, 0, &out);
  return out;
}

}  // namespace cadre
