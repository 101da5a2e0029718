#ifndef CADRE_WORKER_DEVICE_GPU_FACTS_H_
#define CADRE_WORKER_DEVICE_GPU_FACTS_H_

// Whether this build can compute on a GPU, from what the driver says about it.
// Pure, so that it is tested without one.

#include <string>

#include "absl/status/status.h"

namespace cadre {

struct GpuFacts {
  // Versions of CUDA as its runtime numbers them, 13000 for 13.0: the newest
  // that the driver knows (0: there is no driver), and the one built with.
  int driver_version = 0;
  int runtime_version = 0;
  int num_devices = 0;
  int index = 0;
  // Of GPU `index`, where there is one.
  std::string name;
  int capability_major = 0, capability_minor = 0;
};

// FAILED_PRECONDITION says what is missing and what to do about it: no driver,
// one too old, no GPU, no such GPU, a chip that the kernels are not made for.
absl::Status CheckGpu(const GpuFacts& facts);

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_GPU_FACTS_H_
