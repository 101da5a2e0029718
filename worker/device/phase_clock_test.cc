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

TEST(PhaseClockTest, TellsTheWayBackApart) {
  PhaseClock clock({});
  clock.Restart();
  clock.Enter(Phase::kLoss);
  clock.Enter(Phase::kOther);
  clock.BeginBackward();
  {
    PhaseScope scope(&clock, Phase::kExperts);
  }
  double all = 0;
  for (const double seconds : clock.Seconds()) all += seconds;
  EXPECT_GT(clock.backward_seconds(), 0);
  EXPECT_LT(clock.backward_seconds(), all);
  clock.Restart();
  clock.Enter(Phase::kLoss);
  clock.Seconds();
  EXPECT_EQ(clock.backward_seconds(), 0) << "a pass without a way back";
}

TEST(PhaseClockTest, StartsAfresh) {
  PhaseClock clock({});
  clock.Restart();
  clock.Enter(Phase::kRouter);
  clock.Restart();
  EXPECT_EQ(clock.Seconds(), PhaseSeconds{});
}

}  // namespace
}  // namespace cadre
