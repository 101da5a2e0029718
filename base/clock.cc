#include "base/clock.h"

#include <chrono>

namespace cadre {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Monotonic() override {
    return absl::FromChrono(
        std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;  // never destroyed
  return clock;
}

}  // namespace cadre
