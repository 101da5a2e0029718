#include "worker/device/phase_clock.h"

#include <chrono>

#include "base/status_macros.h"

namespace cadre {

CADRE_CUDA_IMPL std::unique_ptr<PhaseMarks> CudaPhaseMarks(void* stream,
                                                           bool nvtx);

namespace {

class HostMarks final : public PhaseMarks {
 public:
  absl::Status Set(size_t index, Phase) override {
    if (index >= at_.size()) at_.resize(index + 1);
    at_[index] = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  absl::StatusOr<double> SecondsBetween(size_t from, size_t to) override {
    return std::chrono::duration<double>(at_[to] - at_[from]).count();
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> at_;
};

}  // namespace

const char* PhaseName(Phase phase) {
  static constexpr const char* kNames[kNumPhases] = {
      "other",   "attention", "router",    "dispatch",
      "experts", "combine",   "dense_mlp", "loss"};
  return kNames[static_cast<size_t>(phase)];
}

PhaseClock::PhaseClock(const Exec& exec, bool nvtx) {
  if (exec.backend == Backend::kCuda && CudaPhaseMarks != nullptr) {
    marks_ = CudaPhaseMarks(exec.stream, nvtx);
  } else {
    marks_ = std::make_unique<HostMarks>();
  }
}

PhaseClock::~PhaseClock() = default;

void PhaseClock::Mark(Phase phase) {
  if (status_.ok()) status_ = marks_->Set(phases_.size(), phase);
  phases_.push_back(phase);
}

void PhaseClock::Restart() {
  status_ = absl::OkStatus();
  phases_.clear();
  backward_mark_.reset();
  Mark(Phase::kOther);
}

Phase PhaseClock::Enter(Phase phase) {
  if (phases_.empty()) Restart();
  const Phase before = phases_.back();
  if (phase == before) return before;
  Mark(phase);
  return before;
}

void PhaseClock::BeginBackward() {
  if (phases_.empty()) Restart();
  backward_mark_ = phases_.size();
  Mark(phases_.back());
}

PhaseSeconds PhaseClock::Seconds() {
  marks_->End();
  PhaseSeconds sums{};
  backward_seconds_ = 0.0;
  for (size_t i = 0; status_.ok() && i + 1 < phases_.size(); ++i) {
    const absl::StatusOr<double> seconds = marks_->SecondsBetween(i, i + 1);
    status_ = seconds.status();
    if (!seconds.ok()) break;
    sums[static_cast<size_t>(phases_[i])] += *seconds;
    if (i >= backward_mark_.value_or(phases_.size())) {
      backward_seconds_ += *seconds;
    }
  }
  if (!status_.ok()) backward_seconds_ = 0.0;
  return status_.ok() ? sums : PhaseSeconds{};
}

}  // namespace cadre
