#include "client/context.h"

#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "cadre/v1/diagnostics.pb.h"
#include "client/exit_codes.h"
#include "client/render/diagnostics.h"

namespace cadre::client {

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string out;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &out, options);
  // Only an Any of a type that is not linked in can fail.
  return status.ok() ? out : absl::StrCat("{\"error\":\"not printable\"}");
}

void Context::Print(absl::string_view text) const {
  std::cout << text << std::flush;
}

void Context::PrintJson(const google::protobuf::Message& message) const {
  std::cout << ToJson(message) << std::endl;
}

void Context::Note(absl::string_view text) const {
  if (!quiet) std::cerr << text << std::flush;
}

int Context::Fail(const absl::Status& status, absl::string_view job_file,
                  absl::string_view job_text) const {
  const std::optional<v1::Diagnostics> diagnostics =
      GetDetail<v1::Diagnostics>(status);
  if (diagnostics && diagnostics->items_size() > 0) {
    std::cerr << RenderDiagnostics(*diagnostics, job_file, job_text, terminal);
  } else {
    std::cerr << terminal.Style("31", "error: ") << status.message() << "\n";
  }
  return ExitCodeFor(status);
}

}  // namespace cadre::client
