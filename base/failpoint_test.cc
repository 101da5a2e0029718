#include "base/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/test_folder.h"

namespace cadre {
namespace {

TEST(FailpointDeathTest, KillsAtTheNthPass) {
  EXPECT_EXIT(
      {
        ArmFailpoints("a.b=kill@2;c=kill");
        Failpoint("a.b");
        Failpoint("other");
        write(STDERR_FILENO, "first\n", 6);
        Failpoint("a.b");
        write(STDERR_FILENO, "second\n", 7);
      },
      ::testing::KilledBySignal(SIGKILL), "first");
  Failpoint("a.b");  // inert here
}

TEST(FailpointDeathTest, RefusesWhatItDoesNotKnow) {
  for (const char* spec :
       {"a", "a=die", "a=kill@", "a=kill@0", "a=kill 2", "a=slow:"}) {
    EXPECT_DEATH(ArmFailpoints(spec), "is not NAME=kill") << spec;
  }
}

TEST(FailpointTest, TakesLongerWhileItsFileIsThere) {
  const std::string file = testing::NewTestFolder() + "/slow";
  std::ofstream(file) << "\n";
  ArmFailpoints("a=slow:" + file);
  const absl::Time begin = absl::Now();
  Failpoint("a");
  Failpoint("a");  // at every pass
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(900));
  ArmFailpoints("");
}

}  // namespace
}  // namespace cadre
