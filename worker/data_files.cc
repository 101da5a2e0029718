#include "worker/data_files.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "base/text/jsonl_reader.h"
#include "model/sha256.h"

namespace cadre {
namespace {

using cadre::v1::SavedFile;

absl::Status Changed(const std::string& path, const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "DATASET_CHANGED",
               absl::StrCat("the data set is not the one that was checked when "
                            "the job was created: ",
                            path, " ", what,
                            "; bring the file back as it was, or create a new "
                            "job, which may start from a checkpoint of this "
                            "one"),
               {{"file", path}});
}

absl::Status CheckFile(const SavedFile& pinned) {
  std::ifstream in(pinned.path(), std::ios::binary);
  if (!in) return FileError("open", pinned.path(), errno);
  Sha256 sha;
  std::vector<char> buffer(1 << 20);
  int64_t bytes = 0;
  while (in.read(buffer.data(), static_cast<int64_t>(buffer.size())) ||
         in.gcount() > 0) {
    sha.Update(absl::string_view(buffer.data(), in.gcount()));
    bytes += in.gcount();
  }
  if (in.bad()) return FileError("read", pinned.path(), errno);
  if (bytes != pinned.bytes()) {
    return Changed(pinned.path(), absl::StrCat("has ", bytes, " bytes, it had ",
                                               pinned.bytes()));
  }
  const std::string digest = sha.HexDigest();
  if (!pinned.sha256().empty() && digest != pinned.sha256()) {
    return Changed(pinned.path(), absl::StrCat("has the SHA-256 ", digest,
                                               ", it had ", pinned.sha256()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDataFiles(const cadre::v1::Assignment& assignment) {
  if (assignment.data_files().empty()) return absl::OkStatus();
  std::map<std::string, const SavedFile*> pinned;
  for (const SavedFile& file : assignment.data_files()) {
    pinned[file.path()] = &file;
  }
  // A glob may match more, or less, than it did.
  std::vector<std::string> present;
  for (const auto* patterns :
       {&assignment.spec().data().train(), &assignment.spec().data().eval()}) {
    if (patterns->empty()) continue;
    CADRE_ASSIGN_OR_RETURN(
        const std::vector<std::string> files,
        ExpandDataFiles({patterns->begin(), patterns->end()}));
    present.insert(present.end(), files.begin(), files.end());
  }
  for (const std::string& path : present) {
    if (!pinned.contains(path)) return Changed(path, "was not there");
  }
  for (const auto& [path, file] : pinned) {
    if (std::find(present.begin(), present.end(), path) == present.end()) {
      return Changed(path, "is gone");
    }
    CADRE_RETURN_IF_ERROR(CheckFile(*file));
  }
  return absl::OkStatus();
}

}  // namespace cadre
