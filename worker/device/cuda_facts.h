#ifndef CADRE_WORKER_DEVICE_CUDA_FACTS_H_
#define CADRE_WORKER_DEVICE_CUDA_FACTS_H_

// What the CUDA runtime says of this machine's GPUs. Linked into the CUDA
// plugin only. Safe from any thread.

#include "absl/status/statusor.h"
#include "worker/device/gpu_facts.h"

namespace cadre {

// Facts about GPU `index`; where there is no driver or no such GPU, as much as
// there is.
absl::StatusOr<GpuFacts> ReadGpuFacts(int index);

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_CUDA_FACTS_H_
