#include "worker/device/cuda_facts.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"

namespace cadre {

absl::StatusOr<GpuFacts> ReadGpuFacts(int index) {
  GpuFacts facts{.runtime_version = CUDART_VERSION, .index = index};
  CADRE_RETURN_IF_ERROR(CudaStatus(cudaDriverGetVersion(&facts.driver_version),
                                   "asking for the driver's version"));
  if (facts.driver_version == 0) return facts;
  const cudaError_t error = cudaGetDeviceCount(&facts.num_devices);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // CheckGpu says it better
    facts.num_devices = 0;
    return facts;
  }
  CADRE_RETURN_IF_ERROR(CudaStatus(error, "counting GPUs"));
  if (index < 0 || index >= facts.num_devices) return facts;
  cudaDeviceProp properties;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index),
                 absl::StrCat("reading the properties of GPU ", index)));
  facts.name = properties.name;
  facts.capability_major = properties.major;
  facts.capability_minor = properties.minor;
  return facts;
}

}  // namespace cadre
