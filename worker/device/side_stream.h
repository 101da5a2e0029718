#ifndef CADRE_WORKER_DEVICE_SIDE_STREAM_H_
#define CADRE_WORKER_DEVICE_SIDE_STREAM_H_

// A second stream of a GPU that marks points of the compute stream: work put
// behind it waits for what the compute stream had been given at the last
// Follow(), and not for what is given to it later. A communication thread
// orders its collectives behind one (Communicator::OrderBehind), so that they
// run beside the computing that was started after them.
//
// Follow() is called on the thread that computes; not thread-safe. Needs no
// CUDA header.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"

namespace cadre {

class SideStream {
 public:
  // Null on the CPU, where work is done when a call returns.
  static absl::StatusOr<std::unique_ptr<SideStream>> Create(const Exec& exec);
  virtual ~SideStream() = default;

  virtual void* stream() const = 0;
  virtual absl::Status Follow() = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_SIDE_STREAM_H_
