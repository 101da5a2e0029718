#ifndef CADRE_WORKER_CHECKPOINT_RETENTION_H_
#define CADRE_WORKER_CHECKPOINT_RETENTION_H_

// Which checkpoints stay. The rule is pure; the functions below it touch disk.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

struct StoredCheckpoint {
  std::string path;  // of the folder
  int64_t step = 0;
  int64_t attempt_epoch = 0;
  bool sealed = false;
};

// Those to remove: all but the newest keep_last sealed ones and those at a
// multiple of keep_every_steps (0: none). An unsealed folder goes once it
// belongs to an older attempt than `attempt_epoch` or to an older step than
// the newest sealed one.
std::vector<StoredCheckpoint> CheckpointsToRemove(
    std::vector<StoredCheckpoint> stored, int keep_last,
    int64_t keep_every_steps, int64_t attempt_epoch);

// Folders of `dir` named like checkpoints, by (step, attempt); none when the
// folder does not exist.
absl::StatusOr<std::vector<StoredCheckpoint>> ListCheckpoints(
    const std::string& dir);

// Removes one checkpoint, the manifest first. INVALID_ARGUMENT when the name
// is not that of a checkpoint; OK when it is gone already.
absl::Status RemoveCheckpoint(const std::string& path);

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_RETENTION_H_
