#ifndef CADRE_CLIENT_COMMANDS_JOB_FILE_H_
#define CADRE_CLIENT_COMMANDS_JOB_FILE_H_

// A job file as the CLI reads it: text, parsed fields with --set applied, and
// where each field was written.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/config/yaml_proto.h"
#include "cadre/v1/job_spec.pb.h"

namespace cadre::client {

struct JobFile {
  std::string path;
  std::string text;
  std::string base_dir;  // absolute folder that relative paths start from
  cadre::v1::JobSpec spec;
  YamlMarks marks;
};

// NOT_FOUND or INVALID_ARGUMENT with a Diagnostics detail. Each of `set` is
// "field.path=value", applied over the file in order; the value is YAML.
absl::StatusOr<JobFile> ReadJobFile(const std::string& path,
                                    const std::vector<std::string>& set);

// `overrides` over `spec`: scalars and lists replace, maps gain keys.
absl::Status ApplySet(const std::vector<std::string>& overrides,
                      cadre::v1::JobSpec* spec);

// Gives findings of the server, which knows fields only, their place in the
// file.
absl::Status PlaceInFile(const absl::Status& status, const JobFile& file);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_COMMANDS_JOB_FILE_H_
