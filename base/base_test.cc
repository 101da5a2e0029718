#include <set>

#include "base/file.h"
#include "base/ids.h"
#include "base/proto_file.h"
#include "base/small_stack.h"
#include "base/status_matchers.h"
#include "base/timeouts.h"
#include "cadre/config/v1/coordinator.pb.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(Timeouts, DefaultsAreInOrder) { EXPECT_OK(CheckOrder(Timeouts{})); }

TEST(Timeouts, AWrongOrderNamesBothNumbers) {
  config::v1::Timeouts config;
  config.set_lease_ttl("4s");
  EXPECT_THAT(ReadTimeouts(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("lease_ttl is 4s"), HasSubstr("9s"))));
  config.set_lease_ttl("soon");
  EXPECT_THAT(ReadTimeouts(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("soon")));
  config.set_lease_ttl("9s");
  EXPECT_EQ(ReadTimeouts(config)->lease_ttl, absl::Seconds(9));
}

TEST(Ids, HaveTheirShape) {
  FakeIdSource fake;
  for (IdSource* source : {IdSource::Random(), static_cast<IdSource*>(&fake)}) {
    EXPECT_THAT(
        source->Uuid(),
        MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-"
                     "[0-9a-f]{12}"));
    std::set<std::string> seen;
    for (int i = 0; i < 100; ++i) seen.insert(source->JobId());
    EXPECT_EQ(seen.size(), 100u);
    EXPECT_THAT(*seen.begin(), MatchesRegex("j-[a-z2-7]{10}"));
  }
}

TEST(File, IsReplacedAsAWhole) {
  const std::string path = ::testing::TempDir() + "/file";
  ASSERT_OK(WriteFileAtomic(path, "one"));
  ASSERT_OK(WriteFileAtomic(path, "two"));
  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_THAT(ReadFile(path + ".no").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
}

TEST(File, IsReadWholeWhateverItsSize) {
  const std::string path = ::testing::TempDir() + "/sized";
  for (const size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    const std::string content(size, 'x');
    ASSERT_OK(WriteFileAtomic(path, content));
    EXPECT_EQ(*ReadFile(path), content) << size << " bytes";
  }
  // It says that it is empty.
  EXPECT_THAT(*ReadFile("/proc/self/maps"), HasSubstr("[stack]"));
}

TEST(File, IsReadOnTheStackOfASmallThread) {
  const std::string path = ::testing::TempDir() + "/large";
  const std::string content(300'000, 'x');
  ASSERT_OK(WriteFileAtomic(path, content));
  testing::RunOnSmallStack([&] { EXPECT_EQ(*ReadFile(path), content); });
}

TEST(ProtoFile, NamesLineAndColumnOfAnUnknownField) {
  config::v1::CoordinatorConfig config;
  ASSERT_OK(ParseTextProto("c", "listen: 'x:1'\n", &config));
  EXPECT_EQ(config.listen(), "x:1");
  EXPECT_THAT(ParseTextProto("c", "listen: 'x:1'\nlistem: 'y'\n", &config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("c:2:"), HasSubstr("listem"))));
}

}  // namespace
}  // namespace cadre
