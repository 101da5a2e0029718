#include "worker/device/phase_clock.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(PhaseClockTest, InnerPhasesCountForThemselves) {
  PhaseClock clock({});
  clock.Restart();
  {
    PhaseScope outer(&clock, Phase::kExperts);
    PhaseScope inner(&clock, Phase::kCombine);
  }
  EXPECT_EQ(clock.Enter(Phase::kLoss), Phase::kOther);
  clock.Enter(Phase::kOther);
  for (const double seconds : clock.Seconds()) EXPECT_GE(seconds, 0);
}

TEST(PhaseClockTest, TakesNoClock) { PhaseScope scope(nullptr, Phase::kLoss); }

TEST(PhaseClockTest, StartsAfresh) {
  PhaseClock clock({});
  clock.Restart();
  clock.Enter(Phase::kRouter);
  clock.Restart();
  EXPECT_EQ(clock.Seconds(), PhaseSeconds{});
}

}  // namespace
}  // namespace cadre
