#include "base/text/encode.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text/json.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;

constexpr char kGolden[] = "tests/golden/tokenizers/";

std::unique_ptr<const TextEncoder> MakeEncoder(const std::string& source,
                                               SpecialTokens tokens = {}) {
  auto tokenizer = Tokenizer::Load(std::string(kGolden) + "qwen2").value();
  auto chat_template = source.empty()
                           ? ChatTemplate::ChatMl()
                           : ChatTemplate::FromSource(source, tokens).value();
  return std::make_unique<const TextEncoder>(
      std::move(tokenizer), std::move(tokens), std::move(chat_template));
}

Record Parse(const std::string& json) {
  return ParseRecord(json, DataFormat::kAuto, "f", 1).record.value();
}

// The text of the trained tokens.
std::string TrainedText(const TextEncoder& encoder,
                        const EncodedSample& sample) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.trained[i] != 0) ids.push_back(sample.ids[i]);
  }
  return encoder.tokenizer().Decode(ids).value();
}

TEST(EncodeTest, ReproducesGoldenIdsAndAssistantMasks) {
  const Json file =
      ReadJsonFile(std::string(kGolden) + "chat_templates.json").value();
  const auto encoder = MakeEncoder(
      file.Find("templates")->Find("generation_mask")->string_value());
  int checked = 0;
  for (const Json& item : file.Find("rendered")->items()) {
    const Json* mask = item.Find("assistant_mask");
    if (mask == nullptr || item.Find("add_generation_prompt")->bool_value()) {
      continue;
    }
    Record record;
    record.format = DataFormat::kChat;
    record.messages = file.Find("conversations")
                          ->items()[item.Find("conversation")->int_value()]
                          .items();
    for (const Json& message : record.messages) {
      record.trained.push_back(message.Find("role")->string_value() ==
                               "assistant");
    }
    ASSERT_OK_AND_ASSIGN(const EncodedSample sample,
                         encoder->Encode(record, {}));
    const std::vector<Json>& ids = item.Find("ids")->items();
    ASSERT_EQ(sample.ids.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(sample.ids[i], ids[i].int_value());
      EXPECT_EQ(sample.trained[i], mask->items()[i].int_value()) << i;
    }
    ++checked;
  }
  EXPECT_GE(checked, 2);
}

TEST(EncodeTest, TrainsWhatLossOnNames) {
  const auto encoder = MakeEncoder("");
  const Record chat = Parse(R"({"messages": [
      {"role": "user", "content": "q"}, {"role": "assistant", "content": "one"},
      {"role": "user", "content": "r"},
      {"role": "assistant", "content": "two"}]})");
  ASSERT_OK_AND_ASSIGN(EncodedSample sample, encoder->Encode(chat, {}));
  EXPECT_EQ(TrainedText(*encoder, sample), "one<|im_end|>two<|im_end|>");
  ASSERT_OK_AND_ASSIGN(sample,
                       encoder->Encode(chat, {.loss_on = LossOn::kCompletion}));
  EXPECT_EQ(TrainedText(*encoder, sample), "two<|im_end|>");
  ASSERT_OK_AND_ASSIGN(sample,
                       encoder->Encode(chat, {.loss_on = LossOn::kAll}));
  EXPECT_EQ(sample.num_targets(), static_cast<int64_t>(sample.ids.size()) - 1);
}

TEST(EncodeTest, HonoursWeights) {
  const auto encoder = MakeEncoder("");
  const Record chat = Parse(R"({"messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": "one", "weight": 0},
      {"role": "user", "content": "r"},
      {"role": "assistant", "content": "two", "weight": 1}]})");
  ASSERT_OK_AND_ASSIGN(const EncodedSample sample, encoder->Encode(chat, {}));
  EXPECT_EQ(TrainedText(*encoder, sample), "two<|im_end|>");
}

TEST(EncodeTest, EndsCompletionsAndTextsWithEos) {
  const auto encoder =
      MakeEncoder("", {.eos = 1500, .eos_text = "<|endoftext|>"});
  ASSERT_OK_AND_ASSIGN(
      EncodedSample sample,
      encoder->Encode(Parse(R"({"prompt": "in ", "completion": "out"})"), {}));
  EXPECT_EQ(TrainedText(*encoder, sample), "out<|endoftext|>");
  ASSERT_OK_AND_ASSIGN(sample,
                       encoder->Encode(Parse(R"({"text": "plain"})"), {}));
  EXPECT_EQ(TrainedText(*encoder, sample), "plain<|endoftext|>");
  ASSERT_OK_AND_ASSIGN(
      sample, encoder->Encode(Parse(R"({"text": "plain<|endoftext|>"})"), {}));
  EXPECT_EQ(TrainedText(*encoder, sample), "plain<|endoftext|>");
}

TEST(EncodeTest, BeginsTextsWithBosWhereTheTokenizerSaysSo) {
  const auto encoder = MakeEncoder("", {.bos = 1501, .add_bos = true});
  ASSERT_OK_AND_ASSIGN(const EncodedSample sample,
                       encoder->Encode(Parse(R"({"text": "plain"})"), {}));
  EXPECT_EQ(sample.ids[0], 1501);
  EXPECT_EQ(sample.num_targets(), static_cast<int64_t>(sample.ids.size()) - 1);
}

TEST(EncodeTest, TreatsLongRecordsAsAsked) {
  const auto encoder = MakeEncoder("");
  const Record text = Parse(R"({"text": "1 2 3 4 5 6 7 8 9 10 11 12"})");
  ASSERT_OK_AND_ASSIGN(EncodedSample sample,
                       encoder->Encode(text, {.max_seq_len = 8}));
  EXPECT_TRUE(sample.truncated);
  EXPECT_FALSE(sample.dropped);
  EXPECT_EQ(sample.ids.size(), 8);
  EXPECT_GT(sample.full_length, 8);
  ASSERT_OK_AND_ASSIGN(
      sample,
      encoder->Encode(text, {.too_long = TooLong::kDrop, .max_seq_len = 8}));
  EXPECT_TRUE(sample.dropped);
  EXPECT_THAT(
      encoder->Encode(text, {.too_long = TooLong::kError, .max_seq_len = 8}),
      StatusIs(absl::StatusCode::kOutOfRange));
  // All that was to be learnt is cut away.
  const Record late =
      Parse(R"({"prompt": "1 2 3 4 5 6 7 8 9 10 11 12", "completion": "x"})");
  ASSERT_OK_AND_ASSIGN(sample, encoder->Encode(late, {.max_seq_len = 8}));
  EXPECT_TRUE(sample.truncated);
  EXPECT_TRUE(sample.dropped);
  EXPECT_THAT(encoder->Encode(Parse(R"({"text": "x"})"), {}),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace cadre
