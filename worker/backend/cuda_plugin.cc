// libcadre_cuda.so: the CUDA backend, opened by plugin_loader.cc.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "worker/backend/backend.h"
#include "worker/backend/plugin_api.h"
#include "worker/device/cuda_status.h"

namespace cadre {
namespace {

// "GPU-c0ffee00-...", as nvidia-smi and the exporters of GPU metrics write it.
std::string FormatUuid(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x",
                          static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

class CudaBackend final : public DeviceBackend {
 public:
  explicit CudaBackend(const cudaDeviceProp& device)
      : facts_{.backend = "cuda",
               .name = device.name,
               .uuid = FormatUuid(device.uuid),
               .memory_bytes = static_cast<int64_t>(device.totalGlobalMem),
               .capability = absl::StrCat(device.major, ".", device.minor)} {}

  const DeviceFacts& facts() const override { return facts_; }

  absl::Status CanTrain() const override {
    return absl::UnimplementedError(
        absl::StrCat("training on CUDA is not part of this release (found ",
                     facts_.name, ", ", facts_.uuid, ")"));
  }

  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerRequest&) override {
    return CanTrain();
  }

 private:
  const DeviceFacts facts_;
};

absl::StatusOr<std::unique_ptr<DeviceBackend>> Create(int index) {
  int num_devices = 0;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&num_devices), "counting GPUs"));
  if (index < 0 || index >= num_devices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--index=", index, ": this machine has ", num_devices, " GPUs"));
  }
  cudaDeviceProp device;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&device, index),
                 absl::StrCat("reading the properties of GPU ", index)));
  return std::make_unique<CudaBackend>(device);
}

}  // namespace
}  // namespace cadre

extern "C" __attribute__((visibility("default"))) const cadre::PluginApi*
CadreCudaPlugin() {
  static constexpr cadre::PluginApi kApi{.version = cadre::kPluginVersion,
                                         .create = &cadre::Create};
  return &kApi;
}
