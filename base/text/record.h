#ifndef CADRE_BASE_TEXT_RECORD_H_
#define CADRE_BASE_TEXT_RECORD_H_

// One training record: a line of a JSONL file, checked against the rules of its
// format. Values only; nothing here is shared.
//   chat               {"messages": [{"role", "content", ...}], "tools": [...]}
//   prompt_completion  {"prompt": "...", "completion": "..."}
//   text               {"text": "..."}

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace cadre {

enum class DataFormat { kAuto, kChat, kPromptCompletion, kText };

// "auto", "chat", "prompt_completion" or "text"; "" is auto.
absl::StatusOr<DataFormat> ParseDataFormat(absl::string_view name);
absl::string_view DataFormatName(DataFormat format);

enum class DataErrorCode {
  kJson,         // JSON: not one JSON object, or a repeated key
  kUtf8,         // UTF8: bytes that are not UTF-8, or a byte order mark
  kKeys,         // KEYS: a required key is missing, or keys contradict
  kType,         // TYPE: a value of the wrong type
  kRoleOrder,    // ROLE_ORDER: unknown role, or roles out of order
  kEmpty,        // EMPTY: nothing where text is needed, or no record at all
  kNoTarget,     // NO_TARGET: nothing to train on
  kTooLong,      // TOO_LONG: over the line limit, or over max_seq_len
  kMixedFormat,  // MIXED_FORMAT: another format than the first record's
  kTemplate,     // TEMPLATE: the model's chat template refuses the record
};
absl::string_view DataErrorCodeName(DataErrorCode code);

// What is wrong (or, as a warning, odd) and where.
struct DataError {
  std::string file;
  int64_t line = 0;    // from 1; 0: the file as a whole
  int64_t column = 0;  // bytes, from 1; 0: the line as a whole
  DataErrorCode code = DataErrorCode::kJson;
  std::string message;

  // "train.jsonl:12:8: ROLE_ORDER: ..."
  std::string ToString() const;
};

struct Record {
  DataFormat format = DataFormat::kText;

  // chat. Messages as written, less `weight`; trained[i]: message i is an
  // assistant message of weight 1.
  std::vector<Json> messages;
  std::vector<bool> trained;
  std::optional<Json> tools;

  // prompt_completion
  std::string prompt;
  std::string completion;

  // text
  std::string text;
};

struct ParsedRecord {
  std::optional<Record> record;  // absent when there are errors
  std::vector<DataError> errors;
  std::vector<DataError> warnings;
};

// Checks one line (without its line end). `format` kAuto: the keys decide.
// Otherwise a record of another format is MIXED_FORMAT. file and line are
// copied into the errors.
ParsedRecord ParseRecord(absl::string_view json, DataFormat format,
                         const std::string& file, int64_t line);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_RECORD_H_
