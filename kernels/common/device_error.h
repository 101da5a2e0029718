#ifndef CADRE_KERNELS_COMMON_DEVICE_ERROR_H_
#define CADRE_KERNELS_COMMON_DEVICE_ERROR_H_

// What kind of error a device's driver answered. It travels in the status, so
// that whoever counts errors need not read messages. Thread-safe.

#include <cstddef>
#include <optional>

#include "absl/status/status.h"

namespace cadre {

enum class DeviceErrorKind {
  kOutOfMemory,
  kLaunch,    // a kernel failed: a bad address, an assertion, its time limit
  kHardware,  // memory, link or bus are broken, or the device is gone
  kDriver,    // none, too old, or no such device
  kOther,
};
inline constexpr size_t kNumDeviceErrorKinds = 5;
const char* DeviceErrorName(DeviceErrorKind kind);  // "out_of_memory"

// The same error with its kind.
absl::Status WithDeviceError(absl::Status status, DeviceErrorKind kind);

// Unset where the status is not a driver's.
std::optional<DeviceErrorKind> DeviceErrorOf(const absl::Status& status);

// The same error for the wire, which knows no kind.
absl::Status WithoutDeviceError(absl::Status status);

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_DEVICE_ERROR_H_
