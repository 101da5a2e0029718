#ifndef CADRE_KERNELS_COMMON_CUDA_STATUS_H_
#define CADRE_KERNELS_COMMON_CUDA_STATUS_H_

// The one place where a CUDA error becomes a Status. Linked into the CUDA
// plugin only.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

// `error` is a cudaError_t; 0 is OK. Out of memory: RESOURCE_EXHAUSTED; no
// driver or device: FAILED_PRECONDITION; a bad argument: INVALID_ARGUMENT; a
// device that is lost or broken: UNAVAILABLE; the rest: INTERNAL. The message
// has `call`, the error's name and its text; DeviceErrorOf tells the kind.
absl::Status CudaStatus(int error, absl::string_view call);

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_CUDA_STATUS_H_
