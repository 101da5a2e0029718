#include "coordinator/path_roots.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "base/text/jsonl_reader.h"

namespace cadre::coordinator {

absl::Status CheckInside(const std::string& path,
                         const std::vector<std::string>& roots) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  for (const std::string& root : roots) {
    const fs::path top = fs::weakly_canonical(root, error);
    const auto [end, at] =
        std::mismatch(top.begin(), top.end(), real.begin(), real.end());
    if (end == top.end() && fs::path(path).is_absolute()) {
      return absl::OkStatus();
    }
  }
  return Error(absl::StatusCode::kInvalidArgument, "PATH_OUTSIDE_ROOTS",
               absl::StrCat("'", path, "' does not lie below ",
                            absl::StrJoin(roots, " or "),
                            " once its links are followed; use a path there"));
}

absl::Status CheckJobPaths(const v1::JobSpec& spec,
                           const std::vector<std::string>& roots) {
  if (roots.empty()) return absl::OkStatus();
  std::vector<std::string> paths = {
      spec.model().path(), spec.model().config(), spec.model().tokenizer(),
      spec.model().adapter(), spec.output().dir()};
  std::vector<std::string> data(spec.data().train().begin(),
                                spec.data().train().end());
  data.insert(data.end(), spec.data().eval().begin(), spec.data().eval().end());
  paths.insert(paths.end(), data.begin(), data.end());
  const std::string& from = spec.checkpoint().resume_from();
  if (from.rfind("jobs/", 0) != 0) paths.push_back(from);
  for (const std::string& path : paths) {
    if (!path.empty()) CADRE_RETURN_IF_ERROR(CheckInside(path, roots));
  }
  // A pattern below a root may match a link that leads out of it. What cannot
  // be listed is reported by those who read it.
  const auto files = ExpandDataFiles(data);
  for (const std::string& file : files.value_or(std::vector<std::string>())) {
    CADRE_RETURN_IF_ERROR(CheckInside(file, roots));
  }
  return absl::OkStatus();
}

}  // namespace cadre::coordinator
