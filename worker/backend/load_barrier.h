#ifndef CADRE_WORKER_BACKEND_LOAD_BARRIER_H_
#define CADRE_WORKER_BACKEND_LOAD_BARRIER_H_

// Loading may take much longer on one rank than on another. Connections are
// made when all have loaded, so that their deadlines can be short.

#include <string>

#include "absl/status/status.h"
#include "worker/backend/backend.h"

namespace cadre {

// Says that this rank has loaded and waits until all have. The error names the
// rank that has not.
absl::Status AwaitLoaded(const TrainerRequest& request,
                         const std::string& key_prefix);

}  // namespace cadre

#endif  // CADRE_WORKER_BACKEND_LOAD_BARRIER_H_
