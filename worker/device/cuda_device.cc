// The CUDA side of device.h.
#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "worker/device/cuda_facts.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/device.h"

namespace cadre {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, Stream stream)
      : index_(index),
        stream_(std::move(stream)),
        exec_{.backend = Backend::kCuda, .stream = stream_.get()} {}

  const Exec& exec() const override { return exec_; }
  absl::Status MakeCurrent() override {
    return CudaStatus(cudaSetDevice(index_),
                      absl::StrCat("choosing GPU ", index_));
  }

 private:
  const int index_;
  const Stream stream_;
  const Exec exec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CudaOpenDevice(int index) {
  CADRE_ASSIGN_OR_RETURN(const GpuFacts facts, ReadGpuFacts(index));
  CADRE_RETURN_IF_ERROR(CheckGpu(facts));
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(index), absl::StrCat("choosing GPU ", index)));
  CADRE_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
  return std::make_unique<CudaDevice>(index, std::move(stream));
}

}  // namespace cadre
