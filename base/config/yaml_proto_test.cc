#include "base/config/yaml_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "cadre/v1/job_spec.pb.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Result {
  bool ok;
  v1::JobSpec spec;
  YamlMarks marks;
  v1::Diagnostics diagnostics;

  // "line:column: message (hint)" of the first finding.
  std::string first() const {
    if (diagnostics.items().empty()) return "";
    const auto& d = diagnostics.items(0);
    return absl::StrCat(d.line(), ":", d.column(), ": ", d.message(), " (",
                        d.hint(), ")");
  }
};

Result Parse(absl::string_view yaml) {
  Result r;
  r.ok = ParseYaml(yaml, &r.spec, &r.marks, &r.diagnostics);
  return r;
}

TEST(YamlProto, ReadsEveryKindOfField) {
  const Result r = Parse(R"(
version: 1
name: demo
labels: {team: nlp}
data:
  train: [a.jsonl, "b.jsonl"]
  packing: false
tuning:
  lora_alpha: 32.5
  lora_rank: auto
resources:
  workers: 2
  min_device_memory_bytes: 80GiB
restarts:
  WORKER_LOST: 4
)");
  ASSERT_TRUE(r.ok) << r.diagnostics.DebugString();
  EXPECT_EQ(r.spec.version(), 1);
  EXPECT_EQ(r.spec.labels().at("team"), "nlp");
  EXPECT_THAT(r.spec.data().train(), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_TRUE(r.spec.data().has_packing());
  EXPECT_FALSE(r.spec.data().packing());
  EXPECT_EQ(r.spec.tuning().lora_alpha(), 32.5);
  EXPECT_FALSE(r.spec.tuning().has_lora_rank());
  EXPECT_EQ(r.spec.resources().min_device_memory_bytes(), int64_t{80} << 30);
  EXPECT_EQ(r.spec.restarts().at("WORKER_LOST"), 4);
  EXPECT_EQ(r.marks.at("data.train[1]").line, 6);
  EXPECT_EQ(r.marks.at("tuning.lora_alpha").column, 3);
}

TEST(YamlProto, NamesTheNearestKnownKey) {
  EXPECT_EQ(Parse("version: 1\ntraining:\n  learning_rat: 1\n").first(),
            "3:3: unknown key \"learning_rat\" (did you mean "
            "\"learning_rate\"?)");
}

TEST(YamlProto, RefusesDuplicateKeys) {
  EXPECT_THAT(Parse("version: 1\nversion: 1\n").first(),
              HasSubstr("2:1: duplicate key"));
  EXPECT_THAT(Parse("labels: {a: b, a: c}\n").first(),
              HasSubstr("duplicate key \"a\""));
}

TEST(YamlProto, RefusesWrongTypes) {
  EXPECT_THAT(Parse("version: one\n").first(),
              HasSubstr("1:10: version must be a whole number, not \"one\""));
  EXPECT_THAT(Parse("data: {packing: yes}\n").first(),
              HasSubstr("true or false"));
  EXPECT_THAT(Parse("data: {train: a.jsonl}\n").first(),
              HasSubstr("data.train must be a list (write [a.jsonl])"));
  EXPECT_THAT(Parse("model: llama\n").first(), HasSubstr("key: value pairs"));
  EXPECT_THAT(Parse("training: {learning_rate: [1]}\n").first(),
              HasSubstr("must be a single value"));
  EXPECT_THAT(Parse("training: {learning_rate: nan}\n").first(),
              HasSubstr("must be a number"));
  EXPECT_THAT(Parse("training: {max_steps: \"5\"}\n").first(),
              HasSubstr("must be a whole number"));
  EXPECT_THAT(Parse("name:\n").first(), HasSubstr("name has no value"));
  EXPECT_THAT(Parse("resources: {min_device_memory_bytes: 80GB}\n").first(),
              HasSubstr("a size such as 80GiB"));
}

TEST(YamlProto, RefusesSyntaxThatHidesMeaning) {
  EXPECT_THAT(Parse("name: &a x\n").first(), HasSubstr("anchors"));
  EXPECT_THAT(
      Parse("model: &m {path: a}\ndata: *m\n").diagnostics.DebugString(),
      HasSubstr("aliases"));
  EXPECT_THAT(Parse("name: !!str x\n").first(), HasSubstr("tags"));
  EXPECT_THAT(Parse("name: x\n---\nname: y\n").first(), HasSubstr("second"));
  EXPECT_THAT(Parse("model:\n\tpath: a\n").first(), HasSubstr("2:1: tab"));
  EXPECT_THAT(Parse("").first(), HasSubstr("empty"));
  EXPECT_THAT(Parse("[[[[[[[[[1]]]]]]]]]").first(), HasSubstr("levels"));
  EXPECT_THAT(Parse("a: [1\n").first(), HasSubstr("not valid YAML"));
  EXPECT_THAT(Parse(std::string(300 * 1024, ' ')).first(), HasSubstr("bytes"));
}

TEST(YamlProto, FindsAllErrorsInOnePass) {
  EXPECT_EQ(Parse("version: x\nnam: y\ndata: {packing: 1}\n")
                .diagnostics.items_size(),
            3);
}

TEST(YamlProto, PlacesFindingsAtTheNearestWrittenField) {
  Result r = Parse("version: 1\ntraining:\n  epochs: 2\n");
  auto* late = r.diagnostics.add_items();
  late->set_field("training.max_steps");
  auto* early = r.diagnostics.add_items();
  early->set_field("version");
  PlaceDiagnostics(r.marks, 50, &r.diagnostics);
  EXPECT_EQ(r.diagnostics.items(0).line(), 1);
  EXPECT_EQ(r.diagnostics.items(1).line(), 2);
  PlaceDiagnostics(r.marks, 1, &r.diagnostics);
  EXPECT_EQ(r.diagnostics.items_size(), 1);
  EXPECT_EQ(r.diagnostics.total(), 2);
}

TEST(YamlProto, SurvivesRandomText) {
  std::mt19937 random(1);
  const std::string alphabet = "ab:[]{}\n -#&*!|>'\"%@`,?\t0train version";
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (int n = random() % 60; n > 0; --n) {
      text += alphabet[random() % alphabet.size()];
    }
    Parse(text);
  }
}

}  // namespace
}  // namespace cadre
