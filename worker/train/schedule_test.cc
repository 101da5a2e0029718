#include "worker/train/schedule.h"

#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

TEST(Schedule, WarmsUpThenFallsToTheMinimum) {
  const LearningRateSchedule s{.kind = ScheduleKind::kLinear,
                               .peak = 1,
                               .warmup_ratio = 0.2,
                               .min_lr_ratio = 0.5,
                               .total_steps = 10};
  EXPECT_EQ(s.warmup_steps(), 2);
  EXPECT_DOUBLE_EQ(s.At(0), 0.5);
  EXPECT_DOUBLE_EQ(s.At(1), 1);
  EXPECT_DOUBLE_EQ(s.At(2), 1);
  EXPECT_DOUBLE_EQ(s.At(9), 0.5);
  EXPECT_GT(s.At(4), s.At(5));
}

TEST(Schedule, CosineIsHalfWayInTheMiddle) {
  const LearningRateSchedule s{
      .peak = 2, .warmup_ratio = 0, .min_lr_ratio = 0, .total_steps = 101};
  EXPECT_DOUBLE_EQ(s.At(0), 2);
  EXPECT_NEAR(s.At(50), 1, 1e-12);
  EXPECT_NEAR(s.At(100), 0, 1e-12);
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const LearningRateSchedule s{.kind = ScheduleKind::kConstant,
                               .peak = 0.1,
                               .warmup_ratio = 0,
                               .total_steps = 1};
  EXPECT_DOUBLE_EQ(s.At(0), 0.1);
  EXPECT_DOUBLE_EQ(s.At(7), 0.1);
}

TEST(Schedule, RefusesWhatTheJobFileForbids) {
  EXPECT_THAT(ParseScheduleKind("step"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("training.schedule")));
  EXPECT_THAT(LearningRateSchedule{.peak = 0}.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("training.learning_rate")));
  EXPECT_THAT(LearningRateSchedule{.warmup_ratio = 0.6}.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("training.warmup_ratio")));
  EXPECT_OK(LearningRateSchedule{}.Validate());
}

}  // namespace
}  // namespace cadre
