#include "base/text/jinja/text_case.h"

#include <utf8proc.h>

#include <cstdint>

#include "base/text/jinja/value.h"
#include "base/text/utf8.h"

namespace cadre::jinja {
namespace {

constexpr uint32_t kSharpS = 0xDF;

void AppendUpper(uint32_t c, std::string* out) {
  if (c == kSharpS) {
    *out += "SS";
  } else {
    AppendUtf8(static_cast<uint32_t>(
                   utf8proc_toupper(static_cast<utf8proc_int32_t>(c))),
               out);
  }
}

void AppendLower(uint32_t c, std::string* out) {
  AppendUtf8(
      static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
      out);
}

bool IsLetter(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool IsDecimal(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) ==
         UTF8PROC_CATEGORY_ND;
}

template <typename Visit>
void ForEach(absl::string_view text, Visit visit) {
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t pos = 0; pos < size;) visit(NextCodePoint(text, &pos));
}

}  // namespace

std::string ToUpper(absl::string_view text) {
  std::string out;
  ForEach(text, [&](uint32_t c) { AppendUpper(c, &out); });
  return out;
}

std::string ToLower(absl::string_view text) {
  std::string out;
  ForEach(text, [&](uint32_t c) { AppendLower(c, &out); });
  return out;
}

std::string ToTitle(absl::string_view text) {
  std::string out;
  bool inside = false;
  ForEach(text, [&](uint32_t c) {
    if (inside) {
      AppendLower(c, &out);
    } else {
      AppendUpper(c, &out);
    }
    inside = IsLetter(c);
  });
  return out;
}

std::string Capitalize(absl::string_view text) {
  std::string out;
  bool first = true;
  ForEach(text, [&](uint32_t c) {
    if (first) {
      AppendUpper(c, &out);
    } else {
      AppendLower(c, &out);
    }
    first = false;
  });
  return out;
}

bool IsAll(absl::string_view text, absl::string_view method) {
  bool all = !text.empty();
  bool any_case = false;
  ForEach(text, [&](uint32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool upper = category == UTF8PROC_CATEGORY_LU;
    const bool lower = category == UTF8PROC_CATEGORY_LL;
    any_case = any_case || upper || lower;
    if (method == "isdigit") {
      all = all && IsDecimal(c);
    } else if (method == "isalpha") {
      all = all && IsLetter(c);
    } else if (method == "isalnum") {
      all = all && (IsLetter(c) || IsDecimal(c));
    } else if (method == "isspace") {
      all = all && IsPythonSpace(c);
    } else if (method == "isupper") {
      all = all && !lower;
    } else {
      all = all && !upper;
    }
  });
  if (method == "isupper" || method == "islower") return all && any_case;
  return all;
}

}  // namespace cadre::jinja
