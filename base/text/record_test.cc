#include "base/text/record.h"

#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

ParsedRecord Parse(const std::string& json,
                   DataFormat format = DataFormat::kAuto) {
  return ParseRecord(json, format, "f.jsonl", 7);
}

TEST(RecordTest, TakesEveryFormat) {
  EXPECT_EQ(Parse(R"({"text": "a"})").record->format, DataFormat::kText);
  const ParsedRecord completion = Parse(R"({"prompt": "", "completion": "b"})");
  EXPECT_EQ(completion.record->format, DataFormat::kPromptCompletion);
  EXPECT_EQ(completion.record->completion, "b");
  const ParsedRecord chat = Parse(R"({"messages": [
      {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
      {"role": "assistant", "content": null, "weight": 0, "tool_calls":
        [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "content": "r"}, {"role": "tool", "content": "r"},
      {"role": "assistant", "content": [{"type": "text", "text": "x"}]}],
      "tools": [{"type": "function"}]})");
  ASSERT_TRUE(chat.record.has_value());
  EXPECT_TRUE(chat.warnings.empty());
  EXPECT_EQ(chat.record->trained,
            (std::vector<bool>{false, false, false, false, false, true}));
  EXPECT_EQ(chat.record->messages[2].Find("weight"), nullptr);
  EXPECT_TRUE(chat.record->tools.has_value());
}

struct Case {
  const char* json;
  DataErrorCode code;
  int64_t column;
};

TEST(RecordTest, NamesCodeAndColumnOfEachFault) {
  using Code = DataErrorCode;
  const Case cases[] = {
      {R"({"text": })", Code::kJson, 10},
      {R"(["text"])", Code::kJson, 1},
      {R"({"text": "a", "text": "b"})", Code::kJson, 15},
      {"{\"text\": \"\xff\"}", Code::kUtf8, 11},
      {R"({"txt": "a"})", Code::kKeys, 1},
      {R"({"prompt": "a"})", Code::kKeys, 1},
      {R"({"text": "a", "messages": []})", Code::kKeys, 1},
      {R"({"text": 3})", Code::kType, 10},
      {R"({"text": ""})", Code::kEmpty, 10},
      {R"({"prompt": "a", "completion": ""})", Code::kEmpty, 31},
      {R"({"messages": {}})", Code::kType, 14},
      {R"({"messages": []})", Code::kEmpty, 14},
      {R"({"messages": [1]})", Code::kType, 15},
      {R"({"messages": [{"content": "a"}]})", Code::kKeys, 15},
      {R"({"messages": [{"role": "bot", "content": "a"}]})", Code::kRoleOrder,
       24},
      {R"({"messages": [{"role": "assistant", "content": "a"}]})",
       Code::kRoleOrder, 24},
      {R"({"messages": [{"role": "user", "content": "a"}]})", Code::kNoTarget,
       14},
      {R"({"messages": [{"role": "user", "content": 1}]})", Code::kType, 43},
      {R"({"messages": [{"role": "user", "content": "a"},
{"role": "assistant", "content": "b", "weight": 2}]})",
       Code::kType, 97},
      {R"({"messages": [{"role": "user", "content": "a"},
{"role": "assistant", "content": "b", "weight": 0}]})",
       Code::kNoTarget, 14},
  };
  for (const Case& c : cases) {
    const ParsedRecord parsed = Parse(c.json);
    EXPECT_FALSE(parsed.record.has_value()) << c.json;
    ASSERT_FALSE(parsed.errors.empty()) << c.json;
    EXPECT_EQ(DataErrorCodeName(parsed.errors[0].code),
              DataErrorCodeName(c.code))
        << c.json << parsed.errors[0].message;
    EXPECT_EQ(parsed.errors[0].column, c.column) << c.json;
    EXPECT_EQ(parsed.errors[0].line, 7);
  }
}

TEST(RecordTest, ChecksTheOrderOfRoles) {
  const auto chat = [](const std::vector<std::string>& roles) {
    std::string json = R"({"messages": [)";
    for (const std::string& role : roles) {
      if (json.back() == '}') json += ",";
      json += R"({"role": ")" + role + R"(", "content": "x"})";
    }
    return Parse(json + "]}").errors.empty();
  };
  EXPECT_TRUE(chat({"user", "assistant", "user", "assistant"}));
  EXPECT_TRUE(chat({"system", "user", "assistant"}));
  EXPECT_TRUE(chat({"user", "assistant", "tool", "tool", "assistant"}));
  EXPECT_FALSE(chat({"user", "system", "assistant"}));
  EXPECT_FALSE(chat({"user", "user", "assistant"}));
  EXPECT_FALSE(chat({"user", "assistant", "assistant"}));
  EXPECT_FALSE(chat({"user", "tool", "assistant"}));
  EXPECT_FALSE(chat({"user", "assistant", "tool", "user", "assistant"}));
  EXPECT_FALSE(chat({"system", "assistant"}));
}

TEST(RecordTest, WarnsOfUnknownKeysAndRefusesMixes) {
  const ParsedRecord parsed = Parse(R"({"text": "a", "id": 4})");
  ASSERT_TRUE(parsed.record.has_value());
  ASSERT_EQ(parsed.warnings.size(), 1);
  EXPECT_EQ(parsed.warnings[0].column, 15);
  const ParsedRecord mixed = Parse(R"({"text": "a"})", DataFormat::kChat);
  ASSERT_EQ(mixed.errors.size(), 1);
  EXPECT_EQ(mixed.errors[0].code, DataErrorCode::kMixedFormat);
  EXPECT_THAT(mixed.errors[0].ToString(),
              HasSubstr("f.jsonl:7:1: MIXED_FORMAT: "));
}

TEST(RecordTest, SurvivesDamagedRecords) {
  const std::string good =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
      R"("content":[{"type":"text","text":"b"}],"weight":1}],"tools":[]})";
  std::mt19937 random(5);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = good;
    for (int i = random() % 4; i >= 0; --i) {
      damaged[random() % damaged.size()] = random() % 2 != 0
                                               ? good[random() % good.size()]
                                               : static_cast<char>(random());
    }
    const ParsedRecord parsed = Parse(damaged);
    EXPECT_NE(parsed.record.has_value(), !parsed.errors.empty());
  }
}

}  // namespace
}  // namespace cadre
