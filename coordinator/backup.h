#ifndef CADRE_COORDINATOR_BACKUP_H_
#define CADRE_COORDINATOR_BACKUP_H_

// Copies of state.db, made while it is in use, and the way back. Each function
// opens connections of its own, which never checkpoint the WAL. They block on
// the disk. Thread-safe.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::coordinator {

struct BackupInfo {
  std::string path;
  int64_t bytes = 0;
  int64_t generation = 0;
  int64_t jobs = 0;
};

// Copies, checks the copy, then gives it its name: a half copy never has it.
// ALREADY_EXISTS if there is a file of that name; RESOURCE_EXHAUSTED: no room.
absl::StatusOr<BackupInfo> BackUp(const std::string& state_dir,
                                  const std::string& path);

// The same into `dir` under a name made of the time; keeps the newest `keep`.
absl::StatusOr<BackupInfo> BackUpInto(const std::string& state_dir,
                                      const std::string& dir, int keep);

// DATA_LOSS if SQLite finds the file damaged or it is no state of Cadre.
absl::StatusOr<BackupInfo> CheckBackup(const std::string& path);

// Puts a checked copy in place; a state that is there is kept beside it. The
// generation jumps ahead, so that no worker listens to what was restored from.
// FAILED_PRECONDITION while a coordinator runs on the folder.
absl::StatusOr<BackupInfo> Restore(const std::string& path,
                                   const std::string& state_dir);

// What a restored generation is ahead of the backup's.
inline constexpr int64_t kRestoreJump = int64_t{1} << 20;

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_BACKUP_H_
