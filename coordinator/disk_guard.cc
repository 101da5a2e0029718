#include "coordinator/disk_guard.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace cadre::coordinator {

DiskGuard::DiskGuard(const std::string& dir, int64_t ballast_bytes)
    : dir_(dir),
      path_(absl::StrCat(dir, "/ballast")),
      ballast_bytes_(ballast_bytes) {
  if (ballast_bytes_ > 0) laid_ = access(path_.c_str(), F_OK) == 0;
  Look();
}

void DiskGuard::Lay() {
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  // Real blocks: a sparse file would hold nothing back.
  laid_ = posix_fallocate(fd, 0, ballast_bytes_) == 0;
  close(fd);
  if (!laid_) unlink(path_.c_str());
}

bool DiskGuard::Release() {
  if (!full_.exchange(true)) {
    CADRE_LOG(ERROR) << "state: the disk of " << dir_
                     << " is full: no new work until space is freed";
  }
  return laid_.exchange(false) && unlink(path_.c_str()) == 0;
}

void DiskGuard::Look() {
  if (ballast_bytes_ <= 0) {
    // Without a mark to go by, the next commit will tell.
    full_ = false;
    return;
  }
  struct statvfs info;
  if (statvfs(dir_.c_str(), &info) != 0) return;
  const int64_t free =
      static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  free_ = free;
  if (free < ballast_bytes_ / 2) {
    if (!full_.exchange(true)) {
      CADRE_LOG(ERROR) << "state: " << free << " bytes are free in " << dir_
                       << ": no new work until space is freed";
    }
    return;
  }
  if (!laid_ && free >= 2 * ballast_bytes_) Lay();
  if (full_ && (laid_ || free >= 2 * ballast_bytes_)) {
    full_ = false;
    CADRE_LOG(INFO) << "state: there is room again in " << dir_;
  }
}

}  // namespace cadre::coordinator
