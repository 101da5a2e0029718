#include "kernels/common/cuda_status.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/common/device_error.h"

namespace cadre {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorLaunchTimeout:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

DeviceErrorKind KindOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return DeviceErrorKind::kOutOfMemory;
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorInvalidConfiguration:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
      return DeviceErrorKind::kLaunch;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorDevicesUnavailable:
      return DeviceErrorKind::kHardware;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
      return DeviceErrorKind::kDriver;
    default:
      return DeviceErrorKind::kOther;
  }
}

}  // namespace

absl::Status CudaStatus(int error, absl::string_view call) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return absl::OkStatus();
  return WithDeviceError(
      absl::Status(CodeOf(code),
                   absl::StrCat(call, ": ", cudaGetErrorName(code), ": ",
                                cudaGetErrorString(code))),
      KindOf(code));
}

}  // namespace cadre
