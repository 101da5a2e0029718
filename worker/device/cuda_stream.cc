#include "worker/device/cuda_stream.h"

#include <cuda_runtime_api.h>

#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"

namespace cadre {

absl::StatusOr<Stream> Stream::Create() {
  Stream stream;
  CADRE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
      "creating a stream"));
  return stream;
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  const absl::Status status =
      CudaStatus(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  if (!status.ok()) CADRE_LOG(WARNING) << status.message();
}

absl::StatusOr<Event> Event::Create(bool timed) {
  Event event;
  CADRE_RETURN_IF_ERROR(CudaStatus(
      cudaEventCreateWithFlags(
          &event.event_, timed ? cudaEventDefault : cudaEventDisableTiming),
      "creating an event"));
  return event;
}

Event::~Event() {
  if (event_ == nullptr) return;
  const absl::Status status =
      CudaStatus(cudaEventDestroy(event_), "cudaEventDestroy");
  if (!status.ok()) CADRE_LOG(WARNING) << status.message();
}

absl::Status Event::Record(cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
}

absl::Status Event::Block(cudaStream_t stream) const {
  return CudaStatus(cudaStreamWaitEvent(stream, event_, 0),
                    "waiting for an event");
}

absl::StatusOr<bool> Event::Reached() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  CADRE_RETURN_IF_ERROR(CudaStatus(error, "the GPU's work before an event"));
  return true;
}

}  // namespace cadre
