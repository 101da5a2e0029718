#include "tests/parity/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace cadre::parity {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ErrorsTest, AreRelativeToTheReference) {
  const std::vector<float> ours = {1, 2, 5}, theirs = {1, 2, 4};
  EXPECT_DOUBLE_EQ(MaxError(ours, theirs), 0.25);
  EXPECT_DOUBLE_EQ(NormError(ours, theirs), std::sqrt(1.0 / 21));
  EXPECT_EQ(MaxError(theirs, theirs), 0);
}

TEST(ErrorsTest, OneNanAnywhereIsSeen) {
  const std::vector<float> theirs = {1, 2, 4};
  for (size_t i = 0; i < theirs.size(); ++i) {
    std::vector<float> ours = theirs;
    ours[i] = kNan;
    EXPECT_TRUE(std::isnan(MaxError(ours, theirs))) << i;
    EXPECT_TRUE(std::isnan(NormError(ours, theirs))) << i;
  }
}

TEST(ReportTest, ANanFailsAndStaysTheError) {
  Report report;
  report.Add("logits", kNan, 1e-5, "first");
  report.Add("logits", 0, 1e-5, "second");
  report.Add("logits", 1e-7, 1e-5, "third");
  EXPECT_FALSE(report.passed());
  const std::string text = report.Render();
  EXPECT_NE(text.find("nan"), std::string::npos) << text;
  EXPECT_NE(text.find("first"), std::string::npos) << text;
}

TEST(ReportTest, AnErrorBeyondItsToleranceFailsWhateverFollows) {
  Report report;
  report.Add("loss", 2e-5, 1e-5, "step 0");
  report.Add("loss", 0, 1e-5, "step 1");
  EXPECT_FALSE(report.passed());
}

TEST(ReportTest, NothingComparedIsNoPass) { EXPECT_FALSE(Report().passed()); }

}  // namespace
}  // namespace cadre::parity
