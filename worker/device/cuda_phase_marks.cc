// The CUDA side of phase_clock.h: a pool of events that grows in the first
// pass.
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "worker/device/cuda_status.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/phase_clock.h"

namespace cadre {
namespace {

class EventMarks final : public PhaseMarks {
 public:
  explicit EventMarks(void* stream)
      : stream_(static_cast<cudaStream_t>(stream)) {}

  absl::Status Set(size_t index) override {
    while (index >= events_.size()) {
      CADRE_ASSIGN_OR_RETURN(Event event, Event::Create(/*timed=*/true));
      events_.push_back(std::move(event));
    }
    return events_[index].Record(stream_);
  }
  absl::StatusOr<double> SecondsBetween(size_t from, size_t to) override {
    float milliseconds = 0;
    CADRE_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, events_[from].get(),
                                        events_[to].get()),
                   "reading the time of a phase"));
    return 1e-3 * milliseconds;
  }

 private:
  const cudaStream_t stream_;
  std::vector<Event> events_;
};

}  // namespace

std::unique_ptr<PhaseMarks> CudaPhaseMarks(void* stream) {
  return std::make_unique<EventMarks>(stream);
}

}  // namespace cadre
