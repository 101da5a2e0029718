#ifndef CADRE_WORKER_COMM_PEER_FAILURE_H_
#define CADRE_WORKER_COMM_PEER_FAILURE_H_

// Which rank a collective waited for in vain. It travels in the status, so that
// a layer that knows who the ranks are can say so. Thread-safe.

#include <optional>

#include "absl/status/status.h"

namespace cadre {

// The same error with the rank, a number in the group that was split first.
absl::Status WithFailedPeer(absl::Status status, int rank);

// Unset where the status names none.
std::optional<int> FailedPeer(const absl::Status& status);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_PEER_FAILURE_H_
