#ifndef CADRE_WORKER_COMM_NCCL_COMMUNICATOR_H_
#define CADRE_WORKER_COMM_NCCL_COMMUNICATOR_H_

// Communicator of GPUs over NCCL. Spans may be of device memory, which is used
// where it lies, or of host memory, which is staged: the counts and agreements
// of a step. A call is ordered behind what was given to the compute stream
// before it, runs on a stream of its own and returns when its result is there;
// the host waits by polling, so that a silent peer ends in DEADLINE_EXCEEDED
// and a broken one in UNAVAILABLE.
//
// Sums have NCCL's order, which is fixed for a number of ranks and a topology:
// they repeat bit for bit on the same machines. NCCL runs non-blocking; after
// an error its communicator is aborted, never destroyed. Refuses NCCL 2.28.3 to
// 2.28.8, which can corrupt memory after an abort. Linked into the CUDA plugin
// only; the device must be current on the thread that creates or splits one.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/common/exec.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rendezvous_store.h"

namespace cadre {

struct NcclCommunicatorOptions {
  int rank = 0;
  int size = 1;
  Exec exec;  // the compute stream
  // In front of every store key; differs between attempts.
  std::string key_prefix;
  absl::Duration timeout = absl::Seconds(60);  // of each call
  absl::Duration rendezvous_timeout = absl::Seconds(300);
};

// Meets the peers through `store`, used only during the call.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    const NcclCommunicatorOptions& options, KeyValueStore* store);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_NCCL_COMMUNICATOR_H_
