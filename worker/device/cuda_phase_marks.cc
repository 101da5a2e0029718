// The CUDA side of phase_clock.h: a pool of events that grows in the first
// pass, and NVTX ranges of the host's calls, which profilers also lay over the
// kernels that the calls launched.
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/phase_clock.h"

namespace cadre {
namespace {

class EventMarks final : public PhaseMarks {
 public:
  EventMarks(void* stream, bool nvtx)
      : stream_(static_cast<cudaStream_t>(stream)), nvtx_(nvtx) {}
  ~EventMarks() override { EventMarks::End(); }

  absl::Status Set(size_t index, Phase phase) override {
    if (nvtx_) {
      End();
      nvtxRangePushA(PhaseName(phase));
      in_range_ = true;
    }
    while (index >= events_.size()) {
      CADRE_ASSIGN_OR_RETURN(Event event, Event::Create(/*timed=*/true));
      events_.push_back(std::move(event));
    }
    return events_[index].Record(stream_);
  }
  void End() override {
    if (in_range_) nvtxRangePop();
    in_range_ = false;
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
  const bool nvtx_;
  bool in_range_ = false;
  std::vector<Event> events_;
};

}  // namespace

std::unique_ptr<PhaseMarks> CudaPhaseMarks(void* stream, bool nvtx) {
  return std::make_unique<EventMarks>(stream, nvtx);
}

}  // namespace cadre
