#ifndef CADRE_WORKER_DEVICE_CUDA_CALLS_H_
#define CADRE_WORKER_DEVICE_CUDA_CALLS_H_

// The CUDA calls behind buffer.h, transfer.h and arena.h, private to this
// folder. Weak: null in a program without CUDA (kernels/common/exec.h).

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/common/exec.h"
#include "worker/device/region.h"

namespace cadre {

CADRE_CUDA_IMPL absl::StatusOr<void*> CudaAllocate(int64_t num_bytes,
                                                   absl::string_view what);
CADRE_CUDA_IMPL void CudaFree(void* data);
CADRE_CUDA_IMPL absl::StatusOr<void*> CudaAllocatePinned(
    int64_t num_bytes, absl::string_view what);
CADRE_CUDA_IMPL void CudaFreePinned(void* data);
// Either pointer may be the device's. Async with respect to the host where both
// ends allow it.
CADRE_CUDA_IMPL absl::Status CudaCopy(void* stream, void* to, const void* from,
                                      int64_t num_bytes);
CADRE_CUDA_IMPL absl::Status CudaZero(void* stream, void* data,
                                      int64_t num_bytes);
CADRE_CUDA_IMPL absl::Status CudaSynchronize(void* stream);
CADRE_CUDA_IMPL absl::StatusOr<std::unique_ptr<Region>> CudaReserveRegion(
    void* stream, absl::string_view what);

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_CUDA_CALLS_H_
