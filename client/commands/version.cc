#include "base/version.h"

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"

namespace cadre::client {

int Version(const Context& context) {
  if (context.json) {
    context.Print(absl::StrCat("{\"version\":\"", kVersion, "\"}\n"));
  } else {
    context.Print(absl::StrCat("cadre ", kVersion, "\n"));
  }
  return kOk;
}

}  // namespace cadre::client
