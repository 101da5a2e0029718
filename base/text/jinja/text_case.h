#ifndef CADRE_BASE_TEXT_JINJA_TEXT_CASE_H_
#define CADRE_BASE_TEXT_JINJA_TEXT_CASE_H_

// Letter case and character classes, as Python's str methods know them (by
// single characters: no special casing such as ß to SS, but for ß itself).

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::jinja {

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
// The first letter of every word in upper case, the others in lower case.
std::string ToTitle(absl::string_view text);
// The first character in upper case, the others in lower case.
std::string Capitalize(absl::string_view text);
// method: isdigit, isalpha, isalnum, isspace, isupper or islower.
bool IsAll(absl::string_view text, absl::string_view method);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_TEXT_CASE_H_
