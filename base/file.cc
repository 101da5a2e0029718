#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// For files whose size is not known, such as those of /proc.
constexpr size_t kMinReadBytes = 4096;

}  // namespace

absl::Status FileError(absl::string_view action, const std::string& path,
                       int error) {
  const std::string message =
      absl::StrCat("cannot ", action, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path, errno);
  // Straight into the string: a buffer on the stack would have to fit into that
  // of the smallest thread of any library that calls back.
  struct stat facts{};
  const size_t expected =
      fstat(fd, &facts) == 0 ? static_cast<size_t>(facts.st_size) : 0;
  // One more than expected, so that the end is seen without growing.
  std::string content(std::max(expected + 1, kMinReadBytes), '\0');
  size_t done = 0;
  ssize_t n;
  while ((n = read(fd, &content[done], content.size() - done)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      close(fd);
      return FileError("read", path, error);
    }
    done += n;
    if (done == content.size()) content.resize(2 * done);
  }
  content.resize(done);
  close(fd);
  return content;
}

absl::Status WriteFileAtomic(const std::string& path,
                             absl::string_view content) {
  const std::string partial = absl::StrCat(path, ".partial-", getpid());
  const int fd =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("create", partial, errno);
  int error = 0;
  size_t done = 0;
  while (done < content.size() && error == 0) {
    const ssize_t n = write(fd, content.data() + done, content.size() - done);
    if (n >= 0) {
      done += n;
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(partial.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  unlink(partial.c_str());
  return FileError("write", path, error);
}

}  // namespace cadre
