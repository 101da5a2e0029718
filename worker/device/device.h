#ifndef CADRE_WORKER_DEVICE_DEVICE_H_
#define CADRE_WORKER_DEVICE_DEVICE_H_

// A GPU with a stream to compute on. For programs that run the engine without
// a backend (tests, parity) and for the CUDA backend itself. Needs no CUDA
// header; without CUDA linked in it answers UNIMPLEMENTED.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"

namespace cadre {

class Device {
 public:
  virtual ~Device() = default;
  // On its stream; valid as long as the device object.
  virtual const Exec& exec() const = 0;
  // Makes the GPU the calling thread's. Every thread that uses exec() calls it
  // first (the one that opened the device has).
  virtual absl::Status MakeCurrent() = 0;
};

// FAILED_PRECONDITION: no driver, no such GPU, or one whose architecture this
// build has no code for.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index);

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_DEVICE_H_
