#ifndef CADRE_WORKER_CHECKPOINT_FILE_DIGEST_H_
#define CADRE_WORKER_CHECKPOINT_FILE_DIGEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/manifest.h"

namespace cadre {

// Size and SHA-256 of dir/name as it is on disk; `path` of the result is name.
absl::StatusOr<CheckpointFile> DigestFile(const std::string& dir,
                                          const std::string& name);

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_FILE_DIGEST_H_
