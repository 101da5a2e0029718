// The CUDA side of side_stream.h.
#include <cuda_runtime_api.h>

#include <utility>

#include "base/status_macros.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/side_stream.h"

namespace cadre {
namespace {

class CudaSideStream final : public SideStream {
 public:
  CudaSideStream(cudaStream_t compute, Stream side, Event point)
      : compute_(compute), side_(std::move(side)), point_(std::move(point)) {}

  void* stream() const override { return side_.get(); }
  absl::Status Follow() override {
    CADRE_RETURN_IF_ERROR(point_.Record(compute_));
    return point_.Block(side_.get());
  }

 private:
  const cudaStream_t compute_;
  const Stream side_;
  Event point_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SideStream>> CudaCreateSideStream(void* stream) {
  CADRE_ASSIGN_OR_RETURN(Stream side, Stream::Create());
  CADRE_ASSIGN_OR_RETURN(Event point, Event::Create());
  return std::make_unique<CudaSideStream>(static_cast<cudaStream_t>(stream),
                                          std::move(side), std::move(point));
}

}  // namespace cadre
