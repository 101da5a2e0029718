// Names of formats and of errors, and how an error prints.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text/record.h"

namespace cadre {

absl::StatusOr<DataFormat> ParseDataFormat(absl::string_view name) {
  if (name.empty() || name == "auto") return DataFormat::kAuto;
  if (name == "chat") return DataFormat::kChat;
  if (name == "prompt_completion") return DataFormat::kPromptCompletion;
  if (name == "text") return DataFormat::kText;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown data format `", name,
                   "`; formats are auto, chat, prompt_completion and text"));
}

absl::string_view DataFormatName(DataFormat format) {
  switch (format) {
    case DataFormat::kAuto:
      return "auto";
    case DataFormat::kChat:
      return "chat";
    case DataFormat::kPromptCompletion:
      return "prompt_completion";
    case DataFormat::kText:
      return "text";
  }
  return "";
}

absl::string_view DataErrorCodeName(DataErrorCode code) {
  switch (code) {
    case DataErrorCode::kJson:
      return "JSON";
    case DataErrorCode::kUtf8:
      return "UTF8";
    case DataErrorCode::kKeys:
      return "KEYS";
    case DataErrorCode::kType:
      return "TYPE";
    case DataErrorCode::kRoleOrder:
      return "ROLE_ORDER";
    case DataErrorCode::kEmpty:
      return "EMPTY";
    case DataErrorCode::kNoTarget:
      return "NO_TARGET";
    case DataErrorCode::kTooLong:
      return "TOO_LONG";
    case DataErrorCode::kMixedFormat:
      return "MIXED_FORMAT";
    case DataErrorCode::kTemplate:
      return "TEMPLATE";
  }
  return "";
}

std::string DataError::ToString() const {
  std::string where = file;
  if (line > 0) absl::StrAppend(&where, ":", line);
  if (line > 0 && column > 0) absl::StrAppend(&where, ":", column);
  return absl::StrCat(where, ": ", DataErrorCodeName(code), ": ", message);
}

}  // namespace cadre
