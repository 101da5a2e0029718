#include "base/text/json.h"

#include <random>
#include <string>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

TEST(JsonTest, RoundTripsWithPythonsSeparators) {
  const std::string text =
      R"({"a": [1, -2.5, 1e+16, 0.0001, 1e-05, true, null], "ü": {"b": "\n\"\\"}})";
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(text));
  EXPECT_EQ(WriteJson(json), text);
  ASSERT_OK_AND_ASSIGN(const Json small, ParseJson(R"({"a":[1,{}],"b":[]})"));
  EXPECT_EQ(WriteJson(small, {.indent = 2, .item_separator = ","}),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(JsonTest, KeepsOffsets) {
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(R"({"a": {"b": 7}})"));
  EXPECT_EQ(json.Find("a")->offset(), 6);
  EXPECT_EQ(json.Find("a")->Find("b")->offset(), 12);
  EXPECT_EQ(json.members()[0].key_offset, 1);
}

TEST(JsonTest, ReportsRepeatedKeysWithTheirPlace) {
  const JsonResult result = ParseJsonDetailed(R"({"a":1,"b":2,"a":3})");
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.error.kind, JsonError::Kind::kDuplicateKey);
  EXPECT_EQ(result.error.offset, 13);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "01", "1.", "+1", "\"\\x\"", "nul", "[1 2]",
        "\"\\ud800\"", "\"a\nb\"", "{}{}", "'a'", "NaN", "\"\xff\""}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
  EXPECT_THAT(ParseJson("{\n  \"a\": x}"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("line 2, column 8")));
  EXPECT_FALSE(ParseJson(std::string(100000, '[')).ok());
}

TEST(JsonTest, JoinsSurrogatePairs) {
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(R"("\ud83d\ude42\u00e9")"));
  EXPECT_EQ(json.string_value(), "🙂é");
}

TEST(JsonTest, SurvivesRandomBytes) {
  std::mt19937 random(3);
  const std::string alphabet = "{}[]\",:\\u0019ae-.+tfn \xc3\xa9\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (int i = random() % 24; i > 0; --i) {
      text.push_back(alphabet[random() % alphabet.size()]);
    }
    (void)ParseJson(text);
  }
}

}  // namespace
}  // namespace cadre
