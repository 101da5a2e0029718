#ifndef CADRE_BASE_FILE_H_
#define CADRE_BASE_FILE_H_

// Whole small files. Thread-safe: no state.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// NOT_FOUND, PERMISSION_DENIED or another error that names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Replaces the file in one step: a reader sees the old or the new content,
// never a part. The new content is on disk before the old one goes.
absl::Status WriteFileAtomic(const std::string& path,
                             absl::string_view content);

// "FILE: strerror" with the code that fits errno.
absl::Status FileError(absl::string_view action, const std::string& path,
                       int error);

}  // namespace cadre

#endif  // CADRE_BASE_FILE_H_
