#include "worker/model/pass_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Notes the steps it is told of: the unit, then v, g or b for both.
class Recorder final : public UnitAccess {
 public:
  absl::Status BeginPass(absl::Span<const UnitStep> steps) override {
    told.clear();
    for (const UnitStep& step : steps) {
      told.push_back(absl::StrCat(step.unit, step.use == UnitUse::kValues ? "v"
                                             : step.use == UnitUse::kGradients
                                                 ? "g"
                                                 : "b"));
    }
    return absl::OkStatus();
  }
  absl::Status Acquire() override {
    ++acquired;
    return absl::OkStatus();
  }
  absl::Status Release() override {
    ++released;
    return absl::OkStatus();
  }

  std::vector<std::string> told;
  int acquired = 0, released = 0;
};

TEST(PassUnitsTest, WithoutShardsNobodyIsAsked) {
  PassUnits units;
  units.Plan({.num_shards = 1, .num_blocks = 2});
  ASSERT_OK(units.Connect(nullptr));
  EXPECT_OK(units.Begin(/*training=*/true));
  EXPECT_OK(units.Acquire());
  EXPECT_OK(units.Release());
}

TEST(PassUnitsTest, TheHeadIsTheLastUnitAndGoesBackFirst) {
  PassUnits units;
  units.Plan({.num_shards = 2, .num_blocks = 2, .trains_embedding = true});
  Recorder access;
  ASSERT_OK(units.Connect(&access));
  ASSERT_OK(units.Begin(/*training=*/false));
  EXPECT_THAT(access.told, ElementsAre("0v", "1v", "2v", "3v"));
  ASSERT_OK(units.Begin(/*training=*/true));
  EXPECT_THAT(access.told,
              ElementsAre("0v", "1v", "2v", "3b", "2b", "1b", "0g"));
  EXPECT_OK(units.Acquire());
  EXPECT_OK(units.Release());
  EXPECT_EQ(access.acquired, 1);
  EXPECT_EQ(access.released, 1);
}

TEST(PassUnitsTest, AHeadThatIsTheEmbeddingLiesInItsUnit) {
  PassUnits units;
  units.Plan({.num_shards = 2, .num_blocks = 1, .tied_head = true});
  Recorder access;
  ASSERT_OK(units.Connect(&access));
  ASSERT_OK(units.Begin(/*training=*/false));
  EXPECT_THAT(access.told, ElementsAre("0v", "1v", "0v"));
  // A frozen embedding has no backward pass.
  ASSERT_OK(units.Begin(/*training=*/true));
  EXPECT_THAT(access.told, ElementsAre("0v", "1v", "0b", "1b"));
}

TEST(PassUnitsTest, ShardsWantAnAccess) {
  PassUnits units;
  units.Plan({.num_shards = 4, .num_blocks = 1});
  EXPECT_THAT(units.Begin(/*training=*/false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not connected")));
  EXPECT_THAT(units.Connect(nullptr),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("in 4 shards")));
}

}  // namespace
}  // namespace cadre
