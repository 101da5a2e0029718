#include "plan/path_roots.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

class PathRootsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::NewTestFolder();
    fs::create_directories(dir_ + "/secret/folder");
    fs::create_directories(dir_ + "/root/model");
    fs::create_directories(dir_ + "/root/blobs");
    Write("secret/file");
    Write("secret/folder/part.safetensors");
    Write("root/blobs/1f");
    Write("root/model/config.json");
    spec_.mutable_model()->set_path(dir_ + "/root/model");
  }
  void Write(const std::string& name) {
    ASSERT_OK(WriteFileAtomic(absl::StrCat(dir_, "/", name), "x"));
  }
  void Link(const std::string& target, const std::string& name) {
    fs::create_symlink(target, absl::StrCat(dir_, "/", name));
  }
  absl::Status Check() { return CheckJobPaths(spec_, {dir_ + "/root"}); }

  std::string dir_;
  v1::JobSpec spec_;
};

TEST_F(PathRootsTest, AFolderOfFilesPassesAndAnotherRootMayHoldIt) {
  EXPECT_OK(Check());
  EXPECT_OK(CheckJobPaths(spec_, {}));
  EXPECT_OK(CheckJobPaths(spec_, {dir_ + "/secret", dir_ + "/root"}));
  EXPECT_FALSE(CheckJobPaths(spec_, {dir_ + "/secret"}).ok());
  spec_.mutable_model()->set_path(dir_ + "/root/../secret");
  EXPECT_FALSE(Check().ok());
  // A folder whose name only begins like the root's.
  fs::create_directories(dir_ + "/roots");
  spec_.mutable_model()->set_path(dir_ + "/roots");
  EXPECT_FALSE(Check().ok());
}

TEST_F(PathRootsTest, TheSnapshotsOfACacheLeadToItsBlobs) {
  fs::create_directories(dir_ + "/root/snapshots/abc");
  Link("../../blobs/1f", "root/snapshots/abc/model.safetensors");
  Link("../../blobs/1f", "root/snapshots/abc/config.json");
  spec_.mutable_model()->set_path(dir_ + "/root/snapshots/abc");
  EXPECT_OK(Check());
  // The root itself may be a link.
  Link(dir_ + "/root", "alias");
  EXPECT_OK(CheckJobPaths(spec_, {dir_ + "/alias"}));
}

TEST_F(PathRootsTest, ALinkOutOfTheRootsIsNamedWithItsTarget) {
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "chat_template.jinja", "generation_config.json"}) {
    const std::string link = absl::StrCat("root/model/", name);
    Link(dir_ + "/secret/file", link);
    const absl::Status status = Check();
    EXPECT_EQ(ErrorReason(status), "PATH_OUTSIDE_ROOTS") << name;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(absl::StrCat("/", name))));
    EXPECT_THAT(std::string(status.message()), HasSubstr("/secret/file'"));
    fs::remove(absl::StrCat(dir_, "/", link));
  }
  // Nobody reads it.
  Link(dir_ + "/secret/file", "root/model/README.md");
  EXPECT_OK(Check());
}

TEST_F(PathRootsTest, ChainsFoldersAndMissingTargetsAreFollowed) {
  Link(dir_ + "/secret/folder", "root/model/parts");
  EXPECT_FALSE(Check().ok());
  fs::remove(dir_ + "/root/model/parts");
  // A link within the root to a folder with a link that leads out.
  fs::create_directories(dir_ + "/root/parts");
  Link(dir_ + "/secret/file", "root/parts/one.safetensors");
  Link("../parts", "root/model/parts");
  EXPECT_FALSE(Check().ok());
  fs::remove(dir_ + "/root/parts/one.safetensors");
  EXPECT_OK(Check());
  // One link after the other; the last one's target is yet to come.
  Link(dir_ + "/secret/later", "root/blobs/2f");
  Link("../blobs/2f", "root/model/tokenizer.json");
  EXPECT_THAT(std::string(Check().message()), HasSubstr("/secret/later'"));
  fs::remove(dir_ + "/root/model/tokenizer.json");
  // A circle leads nowhere; those who open it say so.
  Link("b.json", "root/model/a.json");
  Link("a.json", "root/model/b.json");
  EXPECT_OK(Check());
  Link(".", "root/model/again");
  EXPECT_OK(Check());
}

TEST_F(PathRootsTest, EveryFolderAndEveryDataFileIsLookedAt) {
  fs::create_directories(dir_ + "/root/other");
  Link(dir_ + "/secret/file", "root/other/adapter_config.json");
  const std::string other = dir_ + "/root/other";
  spec_.mutable_model()->set_adapter(other);
  EXPECT_FALSE(Check().ok());
  spec_.mutable_model()->clear_adapter();
  spec_.mutable_model()->set_tokenizer(other);
  EXPECT_FALSE(Check().ok());
  spec_.mutable_model()->clear_tokenizer();
  spec_.mutable_checkpoint()->set_resume_from(other);
  EXPECT_FALSE(Check().ok());
  spec_.mutable_checkpoint()->set_resume_from("jobs/a/checkpoints/1");
  EXPECT_OK(Check());
  Link(dir_ + "/secret/file", "root/a.jsonl");
  spec_.mutable_data()->add_train(dir_ + "/root/*.jsonl");
  EXPECT_THAT(std::string(Check().message()), HasSubstr("/secret/file'"));
}

}  // namespace
}  // namespace cadre
