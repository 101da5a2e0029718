#include "worker/data_files.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// SHA-256 of "one" and of "two".
constexpr char kOne[] =
    "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
constexpr char kTwo[] =
    "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";

class DataFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::NewTestFolder();
    Write("a.jsonl", "one");
    Write("b.jsonl", "two");
    assignment_.mutable_spec()->mutable_data()->add_train(dir_ + "/*.jsonl");
    Pin("a.jsonl", kOne);
    Pin("b.jsonl", kTwo);
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_OK(WriteFileAtomic(absl::StrCat(dir_, "/", name), text));
  }
  void Pin(const std::string& name, const std::string& sha256) {
    auto* file = assignment_.add_data_files();
    file->set_path(absl::StrCat(dir_, "/", name));
    file->set_bytes(3);
    file->set_sha256(sha256);
  }
  // The message, after a check of the reason.
  std::string Refusal() {
    const absl::Status status = CheckDataFiles(assignment_);
    EXPECT_EQ(ErrorReason(status), "DATASET_CHANGED") << status;
    return std::string(status.message());
  }

  std::string dir_;
  v1::Assignment assignment_;
};

TEST_F(DataFilesTest, TheSameFilesPass) {
  EXPECT_OK(CheckDataFiles(assignment_));
  // A touched file has the same bytes.
  Write("a.jsonl", "one");
  EXPECT_OK(CheckDataFiles(assignment_));
}

TEST_F(DataFilesTest, OtherBytesAreNamedWithTheirFile) {
  Write("b.jsonl", "twO");
  EXPECT_THAT(Refusal(), HasSubstr("b.jsonl has the SHA-256"));
  Write("b.jsonl", "twofold");
  EXPECT_THAT(Refusal(), HasSubstr("b.jsonl has 7 bytes, it had 3"));
}

TEST_F(DataFilesTest, AGlobThatMatchesMoreOrLessIsAChange) {
  Write("c.jsonl", "");
  EXPECT_THAT(Refusal(), HasSubstr("c.jsonl was not there"));
  std::filesystem::remove(dir_ + "/c.jsonl");
  std::filesystem::remove(dir_ + "/a.jsonl");
  EXPECT_THAT(Refusal(), HasSubstr("a.jsonl is gone"));
}

TEST_F(DataFilesTest, AnAssignmentWithoutPinsIsNotChecked) {
  assignment_.clear_data_files();
  Write("b.jsonl", "anything");
  EXPECT_OK(CheckDataFiles(assignment_));
}

}  // namespace
}  // namespace cadre
