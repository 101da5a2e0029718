#include "client/commands/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "cadre/v1/diagnostics.pb.h"

namespace cadre::client {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(JobFile, SetReplacesScalarsAndLists) {
  const std::string path =
      Write("set.yaml", "version: 1\ntuning: {lora_target_modules: [a, b]}\n");
  ASSERT_OK_AND_ASSIGN(
      JobFile file,
      ReadJobFile(path, {"training.max_steps=5", "labels.team=nlp",
                         "tuning.lora_target_modules=[experts]"}));
  EXPECT_EQ(file.spec.training().max_steps(), 5);
  EXPECT_EQ(file.spec.labels().at("team"), "nlp");
  EXPECT_THAT(file.spec.tuning().lora_target_modules(), ElementsAre("experts"));
  EXPECT_EQ(file.spec.version(), 1);
}

TEST(JobFile, SetErrorsNameTheArgument) {
  v1::JobSpec spec;
  EXPECT_THAT(ApplySet({"training.max_step=5"}, &spec),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("did you mean \"max_steps\"")));
  EXPECT_THAT(ApplySet({"training"}, &spec),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("write field=value")));
}

TEST(JobFile, MissingFileIsNotFound) {
  EXPECT_THAT(ReadJobFile("/nowhere/job.yaml", {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("job.yaml")));
}

TEST(JobFile, BadFileCarriesItsFindings) {
  const absl::Status status =
      ReadJobFile(Write("bad.yaml", "versio: 1\n"), {}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  const auto findings = GetDetail<v1::Diagnostics>(status);
  ASSERT_TRUE(findings.has_value());
  EXPECT_EQ(findings->items(0).line(), 1);
}

TEST(JobFile, ServerFindingsGetTheirPlace) {
  ASSERT_OK_AND_ASSIGN(
      JobFile file,
      ReadJobFile(Write("ok.yaml", "version: 1\nmodel:\n  path: x\n"), {}));
  v1::Diagnostics d;
  d.add_items()->set_field("model.path");
  absl::Status status = absl::InvalidArgumentError("x");
  AddDetail(d, &status);
  const auto placed = GetDetail<v1::Diagnostics>(PlaceInFile(status, file));
  ASSERT_TRUE(placed.has_value());
  EXPECT_EQ(placed->items(0).line(), 3);
  EXPECT_EQ(placed->items(0).column(), 3);
}

}  // namespace
}  // namespace cadre::client
