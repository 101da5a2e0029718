// libcadre_cuda.so: the CUDA backend, opened by plugin_loader.cc.
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "worker/backend/backend.h"
#include "worker/backend/load_barrier.h"
#include "worker/backend/metered_communicator.h"
#include "worker/backend/peak_flops.h"
#include "worker/backend/plugin_api.h"
#include "worker/comm/local_communicator.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/device/cuda_facts.h"
#include "worker/device/device.h"
#include "worker/device/transfer.h"
#include "worker/train/load_inputs.h"

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
  CudaBackend(const cudaDeviceProp& properties, int index)
      : index_(index),
        facts_{
            .backend = "cuda",
            .name = properties.name,
            .uuid = FormatUuid(properties.uuid),
            .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
            .capability = absl::StrCat(properties.major, ".", properties.minor),
            .peak_flops = GpuPeakFlops(properties.name)} {}

  const DeviceFacts& facts() const override { return facts_; }

  absl::Status CanTrain() const override {
    return OpenCudaDevice(index_).status();
  }

  absl::StatusOr<DeviceMemory> Memory() const override {
    // Asking would open the device, which takes memory itself.
    if (!opened_) return absl::UnavailableError("no job has opened the GPU");
    CADRE_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(index_), "selecting the GPU"));
    size_t free = 0, total = 0;
    CADRE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total),
                                     "asking for the GPU's free memory"));
    return DeviceMemory{.total = static_cast<int64_t>(total),
                        .free = static_cast<int64_t>(free)};
  }

  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerRequest& request) override {
    CADRE_RETURN_IF_ERROR(OpenDevice());
    const Exec& exec = device_->exec();
    CADRE_ASSIGN_OR_RETURN(
        TrainerInputs inputs,
        LoadTrainerInputs(request.options, exec, request.observer));
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world,
                           Meet(request, exec));
    return Trainer::Create(
        request.options, std::move(inputs),
        MeterCollectives(std::move(world), request.collectives),
        request.observer);
  }

 private:
  // Once; later jobs find it, and say so when an earlier one has broken it.
  absl::Status OpenDevice() {
    if (device_ == nullptr) {
      CADRE_ASSIGN_OR_RETURN(device_, OpenCudaDevice(index_));
      opened_ = true;
    }
    CADRE_RETURN_IF_ERROR(device_->MakeCurrent());
    const absl::Status alive = Synchronize(device_->exec());
    if (!alive.ok()) {
      return absl::UnavailableError(
          absl::StrCat("GPU ", index_, " was left broken by an earlier job (",
                       std::string(alive.message()), "); restart this worker"));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<std::unique_ptr<Communicator>> Meet(
      const TrainerRequest& request, const Exec& exec) {
    const int size = request.options.mesh.world_size;
    if (size == 1) {
      return std::move(
          CreateLocalCommunicators(1, {.timeout = request.collective_timeout})
              .front());
    }
    const std::string prefix = absl::StrCat(request.options.job, "/",
                                            request.options.attempt_epoch, "/");
    CADRE_RETURN_IF_ERROR(AwaitLoaded(request, prefix));
    return CreateNcclCommunicator(
        {.rank = request.options.rank,
         .size = size,
         .exec = exec,
         .key_prefix = prefix,
         .timeout = request.collective_timeout,
         .rendezvous_timeout = request.rendezvous_timeout},
        request.store);
  }

  const int index_;
  const DeviceFacts facts_;
  std::unique_ptr<Device> device_;
  std::atomic<bool> opened_{false};
};

absl::StatusOr<std::unique_ptr<DeviceBackend>> Create(int index) {
  CADRE_ASSIGN_OR_RETURN(const GpuFacts facts, ReadGpuFacts(index));
  CADRE_RETURN_IF_ERROR(CheckGpu(facts));
  cudaDeviceProp properties;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index),
                 absl::StrCat("reading the properties of GPU ", index)));
  return std::make_unique<CudaBackend>(properties, index);
}

}  // namespace
}  // namespace cadre

extern "C" __attribute__((visibility("default"))) const cadre::PluginApi*
CadreCudaPlugin() {
  static constexpr cadre::PluginApi kApi{.version = cadre::kPluginVersion,
                                         .create = &cadre::Create};
  return &kApi;
}
