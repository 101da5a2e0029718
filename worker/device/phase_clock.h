#ifndef CADRE_WORKER_DEVICE_PHASE_CLOCK_H_
#define CADRE_WORKER_DEVICE_PHASE_CLOCK_H_

// Where the time of a pass goes: every change of phase puts a mark on the
// exec's stream (CUDA: an event; CPU: the clock), and the time between two
// marks counts for the phase between them. Phases nest; the inner one counts.
// Nothing waits until Seconds(). Not thread-safe.
//
//   clock.Restart();
//   { PhaseScope scope(&clock, Phase::kRouter); ... }
//   Synchronize(exec);
//   clock.Seconds()[static_cast<size_t>(Phase::kRouter)]

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"

namespace cadre {

enum class Phase {
  kOther,      // embedding, norms, residuals
  kAttention,  // token mixers with their projections
  kRouter,
  kDispatch,  // rows into expert order, and across ranks
  kExperts,
  kCombine,
  kDenseMlp,  // shared experts and dense feed-forward parts
  kLoss,
};
inline constexpr size_t kNumPhases = 8;
const char* PhaseName(Phase phase);  // "attention"

using PhaseSeconds = std::array<double, kNumPhases>;

// Marks on a stream, behind PhaseClock.
class PhaseMarks {
 public:
  virtual ~PhaseMarks() = default;
  // `phase` begins at this mark.
  virtual absl::Status Set(size_t index, Phase phase) = 0;
  // Nothing is timed until the next mark.
  virtual void End() {}
  // Between two marks that were set and reached.
  virtual absl::StatusOr<double> SecondsBetween(size_t from, size_t to) = 0;
};

class PhaseClock {
 public:
  // With `nvtx` and on a GPU, phases are ranges in a profiler's time line, too.
  explicit PhaseClock(const Exec& exec, bool nvtx = false);
  ~PhaseClock();

  // A new pass, in kOther.
  void Restart();
  // The phase from now on; returns the one until now.
  Phase Enter(Phase phase);
  // The pass goes back from now on.
  void BeginBackward();
  // Of the pass since Restart, whose work must be done. All zero where a mark
  // failed.
  PhaseSeconds Seconds();
  // Part of the last Seconds() since BeginBackward; 0 without one.
  double backward_seconds() const { return backward_seconds_; }

 private:
  void Mark(Phase phase);

  std::unique_ptr<PhaseMarks> marks_;
  std::vector<Phase> phases_;  // phases_[i] follows mark i
  std::optional<size_t> backward_mark_;
  double backward_seconds_ = 0.0;
  absl::Status status_;
};

// `clock` may be null.
class PhaseScope {
 public:
  PhaseScope(PhaseClock* clock, Phase phase) : clock_(clock) {
    if (clock_ != nullptr) before_ = clock_->Enter(phase);
  }
  ~PhaseScope() {
    if (clock_ != nullptr) clock_->Enter(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseClock* const clock_;
  Phase before_ = Phase::kOther;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_PHASE_CLOCK_H_
