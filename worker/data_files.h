#ifndef CADRE_WORKER_DATA_FILES_H_
#define CADRE_WORKER_DATA_FILES_H_

// What an attempt trains on must be what was checked when the job was created:
// the same files with the same bytes. Reads every file once. Thread-safe.

#include "absl/status/status.h"
#include "cadre/v1/worker_service.pb.h"

namespace cadre {

// FAILED_PRECONDITION, DATASET_CHANGED names the file and what is different.
// OK for an assignment that pins nothing.
absl::Status CheckDataFiles(const cadre::v1::Assignment& assignment);

}  // namespace cadre

#endif  // CADRE_WORKER_DATA_FILES_H_
