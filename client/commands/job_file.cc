#include "client/commands/job_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "cadre/v1/diagnostics.pb.h"

namespace cadre::client {
namespace {

// Most findings shown for a job file.
constexpr int kMaxFindings = 50;

absl::Status InvalidWith(absl::string_view message,
                         const v1::Diagnostics& diagnostics) {
  absl::Status status =
      Error(absl::StatusCode::kInvalidArgument, "JOB_FILE_INVALID", message);
  AddDetail(diagnostics, &status);
  return status;
}

// Clears the field a path leads to, so that a list is replaced, not extended.
void ClearAt(const std::vector<std::string>& path,
             google::protobuf::Message* message) {
  for (size_t i = 0; i < path.size(); ++i) {
    const auto* field = message->GetDescriptor()->FindFieldByName(path[i]);
    if (field == nullptr) return;
    if (i + 1 == path.size()) {
      message->GetReflection()->ClearField(message, field);
    } else if (field->is_repeated() ||
               field->cpp_type() !=
                   google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      return;
    } else {
      message = message->GetReflection()->MutableMessage(message, field);
    }
  }
}

}  // namespace

absl::Status ApplySet(const std::vector<std::string>& overrides,
                      v1::JobSpec* spec) {
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--set ", text, ": write field=value, such as training.epochs=2"));
    }
    const std::vector<std::string> path =
        absl::StrSplit(text.substr(0, equals), '.');
    std::string yaml;
    for (size_t i = 0; i < path.size(); ++i) {
      absl::StrAppend(&yaml, std::string(2 * i, ' '), path[i], ":",
                      i + 1 < path.size() ? "\n" : " ");
    }
    absl::StrAppend(&yaml, text.substr(equals + 1), "\n");
    v1::JobSpec parsed;
    YamlMarks marks;
    v1::Diagnostics diagnostics;
    if (!ParseYaml(yaml, &parsed, &marks, &diagnostics)) {
      const auto& first = diagnostics.items(0);
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", text, ": ", first.message(),
                       first.hint().empty() ? "" : "; ", first.hint()));
    }
    ClearAt(path, spec);
    spec->MergeFrom(parsed);
  }
  return absl::OkStatus();
}

absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& set) {
  JobFile file{.path = path};
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(
        absl::StrCat("job file ", path, " does not exist or is no file"));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  file.text = text.str();
  file.base_dir =
      std::filesystem::absolute(path, error).parent_path().lexically_normal();
  v1::Diagnostics diagnostics;
  if (!ParseYaml(file.text, &file.spec, &file.marks, &diagnostics)) {
    PlaceDiagnostics(file.marks, kMaxFindings, &diagnostics);
    return InvalidWith(absl::StrCat(path, " is not a valid job file"),
                       diagnostics);
  }
  CADRE_RETURN_IF_ERROR(ApplySet(set, &file.spec));
  return file;
}

absl::Status PlaceInFile(const absl::Status& status, const JobFile& file) {
  std::optional<v1::Diagnostics> diagnostics =
      GetDetail<v1::Diagnostics>(status);
  if (!diagnostics) return status;
  PlaceDiagnostics(file.marks, kMaxFindings, &*diagnostics);
  absl::Status placed = status;
  AddDetail(*diagnostics, &placed);
  return placed;
}

}  // namespace cadre::client
