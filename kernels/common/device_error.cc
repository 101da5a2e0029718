#include "kernels/common/device_error.h"

#include <string>

#include "absl/strings/cord.h"

namespace cadre {
namespace {

constexpr char kPayload[] = "cadre/device_error";

}  // namespace

const char* DeviceErrorName(DeviceErrorKind kind) {
  static constexpr const char* kNames[kNumDeviceErrorKinds] = {
      "out_of_memory", "launch", "hardware", "driver", "other"};
  return kNames[static_cast<size_t>(kind)];
}

absl::Status WithDeviceError(absl::Status status, DeviceErrorKind kind) {
  status.SetPayload(kPayload, absl::Cord(DeviceErrorName(kind)));
  return status;
}

std::optional<DeviceErrorKind> DeviceErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return std::nullopt;
  const std::string name(*payload);
  for (size_t i = 0; i < kNumDeviceErrorKinds; ++i) {
    const auto kind = static_cast<DeviceErrorKind>(i);
    if (name == DeviceErrorName(kind)) return kind;
  }
  return DeviceErrorKind::kOther;
}

absl::Status WithoutDeviceError(absl::Status status) {
  status.ErasePayload(kPayload);
  return status;
}

}  // namespace cadre
