#ifndef CADRE_BASE_PROTO_FILE_H_
#define CADRE_BASE_PROTO_FILE_H_

// Configuration files: one text-format protobuf message per file. Thread-safe.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace cadre {

// Parses `text`. INVALID_ARGUMENT lists every problem as NAME:LINE:COLUMN; an
// unknown field is a problem.
absl::Status ParseTextProto(absl::string_view name, const std::string& text,
                            google::protobuf::Message* message);

// ParseTextProto on a file's content.
absl::Status ReadTextProto(const std::string& path,
                           google::protobuf::Message* message);

}  // namespace cadre

#endif  // CADRE_BASE_PROTO_FILE_H_
