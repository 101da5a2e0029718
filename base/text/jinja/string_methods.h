#ifndef CADRE_BASE_TEXT_JINJA_STRING_METHODS_H_
#define CADRE_BASE_TEXT_JINJA_STRING_METHODS_H_

// Methods of strings (methods.cc has those of the other kinds). Stateless.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/jinja/runtime.h"

namespace cadre::jinja {

bool HasStringMethod(absl::string_view name);
// `name` is one of them.
absl::StatusOr<Value> StringMethod(const std::string& text,
                                   const std::string& name,
                                   const CallArguments& arguments);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_STRING_METHODS_H_
