#include "worker/device/side_stream.h"

namespace cadre {

CADRE_CUDA_IMPL absl::StatusOr<std::unique_ptr<SideStream>>
CudaCreateSideStream(void* stream);

absl::StatusOr<std::unique_ptr<SideStream>> SideStream::Create(
    const Exec& exec) {
  if (exec.backend == Backend::kCpu) return nullptr;
  if (CudaCreateSideStream == nullptr) return NoCudaError("a second stream");
  return CudaCreateSideStream(exec.stream);
}

}  // namespace cadre
