#include "worker/device/device.h"

namespace cadre {

CADRE_CUDA_IMPL absl::StatusOr<std::unique_ptr<Device>> CudaOpenDevice(
    int index);

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int index) {
  if (CudaOpenDevice == nullptr) return NoCudaError("opening a GPU");
  return CudaOpenDevice(index);
}

}  // namespace cadre
