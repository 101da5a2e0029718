#ifndef CADRE_WORKER_COMM_LOCAL_COMMUNICATOR_H_
#define CADRE_WORKER_COMM_LOCAL_COMMUNICATOR_H_

// The in-process twin of GlooCommunicator and NcclCommunicator: the ranks are
// threads of one process. Same contract (communicator.h), same bits: floating
// sums run in rank order. Contributions are copied, so a rank that gives up
// early never leaves a peer with a dangling buffer. Destroying one rank's
// communicator tells its peers that the rank is gone.

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace cadre {

struct LocalCommunicatorOptions {
  absl::Duration timeout = absl::Seconds(60);  // of each call
};

// One communicator per rank of a fresh group, to be handed to `size` threads.
std::vector<std::unique_ptr<Communicator>> CreateLocalCommunicators(
    int size, const LocalCommunicatorOptions& options = {});

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_LOCAL_COMMUNICATOR_H_
