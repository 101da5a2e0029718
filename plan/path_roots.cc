#include "plan/path_roots.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "base/text/jsonl_reader.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as the kernel's own limit
// Entries of a model folder that are looked at: shards may lie in folders.
constexpr int kMaxDepth = 3;
constexpr int kMaxEntries = 100'000;

absl::Status Outside(const std::string& what,
                     const std::vector<std::string>& roots) {
  return Error(
      absl::StatusCode::kInvalidArgument, "PATH_OUTSIDE_ROOTS",
      absl::StrCat(what, " does not lie below ", absl::StrJoin(roots, " or "),
                   " once its links are followed; use a path there"));
}

// Where a path leads. weakly_canonical alone takes a link without a target for
// a new file beside it.
fs::path Follow(const fs::path& path) {
  std::error_code error;
  fs::path at = path;
  for (int links = 0; links < kMaxLinks; ++links) {
    const fs::path real = fs::weakly_canonical(at, error);
    if (error) return at.lexically_normal();
    if (!fs::is_symlink(fs::symlink_status(real, error))) return real;
    at = real.parent_path() / fs::read_symlink(real, error);
  }
  return at.lexically_normal();
}

bool IsBelow(const fs::path& real, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    const fs::path top = Follow(root);
    return std::mismatch(top.begin(), top.end(), real.begin(), real.end())
               .first == top.end();
  });
}

// What model folders are read for: weights, and the small files that go into a
// result beside them. Links to other files (a README) harm nobody.
bool IsRead(const fs::path& path) {
  constexpr std::array<const char*, 7> kExtensions = {
      ".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"};
  const std::string extension = path.extension().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) !=
         kExtensions.end();
}

absl::Status CheckFolder(const std::string& folder,
                         const std::vector<std::string>& roots) {
  std::error_code error;
  // A link to a folder is entered only after it has been checked.
  fs::recursive_directory_iterator entries(
      folder,
      fs::directory_options::skip_permission_denied |
          fs::directory_options::follow_directory_symlink,
      error);
  int seen = 0;
  for (; !error && entries != fs::recursive_directory_iterator();
       entries.increment(error)) {
    if (++seen > kMaxEntries) {
      return Error(
          absl::StatusCode::kInvalidArgument, "PATH_OUTSIDE_ROOTS",
          absl::StrCat("'", folder, "' holds more than ", kMaxEntries,
                       " files, too many to look for links that lead out of ",
                       absl::StrJoin(roots, " and "),
                       "; name the folder of the model itself"));
    }
    if (entries.depth() + 1 >= kMaxDepth) entries.disable_recursion_pending();
    std::error_code ignored;
    const fs::path& path = entries->path();
    if (!entries->is_symlink(ignored)) continue;
    if (!entries->is_directory(ignored) && !IsRead(path)) continue;
    CADRE_RETURN_IF_ERROR(CheckInside(path.string(), roots));
  }
  // What cannot be listed is reported by those who read it.
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInside(const std::string& path,
                         const std::vector<std::string>& roots) {
  if (!fs::path(path).is_absolute()) {
    return Outside(absl::StrCat("'", path, "'"), roots);
  }
  const fs::path real = Follow(path);
  if (IsBelow(real, roots)) return absl::OkStatus();
  if (real == fs::path(path).lexically_normal()) {
    return Outside(absl::StrCat("'", path, "'"), roots);
  }
  return Outside(absl::StrCat("'", path, "' leads by a symbolic link to '",
                              real.string(), "', which"),
                 roots);
}

absl::Status CheckJobPaths(const v1::JobSpec& spec,
                           const std::vector<std::string>& roots) {
  if (roots.empty()) return absl::OkStatus();
  std::vector<std::string> folders = {
      spec.model().path(), spec.model().config(), spec.model().tokenizer(),
      spec.model().adapter()};
  const std::string& from = spec.checkpoint().resume_from();
  if (from.rfind("jobs/", 0) != 0) folders.push_back(from);
  std::vector<std::string> data(spec.data().train().begin(),
                                spec.data().train().end());
  data.insert(data.end(), spec.data().eval().begin(), spec.data().eval().end());
  std::vector<std::string> paths = {spec.output().dir()};
  paths.insert(paths.end(), folders.begin(), folders.end());
  paths.insert(paths.end(), data.begin(), data.end());
  for (const std::string& path : paths) {
    if (!path.empty()) CADRE_RETURN_IF_ERROR(CheckInside(path, roots));
  }
  for (const std::string& folder : folders) {
    std::error_code error;
    if (fs::is_directory(folder, error)) {
      CADRE_RETURN_IF_ERROR(CheckFolder(folder, roots));
    }
  }
  // A pattern below a root may match a link that leads out of it. What cannot
  // be listed is reported by those who read it.
  const auto files = ExpandDataFiles(data);
  for (const std::string& file : files.value_or(std::vector<std::string>())) {
    CADRE_RETURN_IF_ERROR(CheckInside(file, roots));
  }
  return absl::OkStatus();
}

}  // namespace cadre
