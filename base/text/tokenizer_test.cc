#include "base/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/text/added_tokens.h"
#include "base/text/byte_level.h"
#include "base/text/json.h"
#include "base/text/normalizer.h"
#include "base/text/pre_tokenizer.h"
#include "base/text/regex.h"
#include "base/text/special_tokens.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/tokenizers/";

std::vector<int32_t> Ids(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.items()) {
    ids.push_back(static_cast<int32_t>(id.int_value()));
  }
  return ids;
}

// A tokenizer of single bytes and the given merges and extra members.
std::string SmallTokenizer(const std::vector<std::string>& merges,
                           const std::string& members) {
  std::string vocab, list;
  int id = 0;
  for (int byte = 0; byte < 256; ++byte, ++id) {
    absl::StrAppend(&vocab, id > 0 ? "," : "",
                    WriteJsonString(ToByteLevel(std::string(1, byte))), ":",
                    id);
  }
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    absl::StrAppend(&vocab, ",", WriteJsonString(token), ":", id++);
    absl::StrAppend(&list, list.empty() ? "" : ",", WriteJsonString(merge));
  }
  return absl::StrCat(R"({"model":{"type":"BPE","vocab":{)", vocab,
                      R"(},"merges":[)", list,
                      R"(]},"decoder":{"type":"ByteLevel"})",
                      members.empty() ? "" : ",", members, "}");
}

constexpr char kByteLevelOnly[] =
    R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false})";

class GoldenTokenizerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenTokenizerTest, ReproducesIdsAndDecodedText) {
  const std::string dir = kGolden + GetParam();
  ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Load(dir));
  ASSERT_OK_AND_ASSIGN(const Json expected,
                       ReadJsonFile(dir + "/expected.json"));
  ASSERT_FALSE(expected.items().empty());
  for (const Json& item : expected.items()) {
    const std::string& text = item.Find("text")->string_value();
    const std::vector<int32_t> ids = Ids(*item.Find("ids"));
    EXPECT_THAT(tokenizer->Encode(text), ::testing::Truly([&](const auto& got) {
                  return got.ok() && *got == ids;
                }))
        << text;
    ASSERT_OK_AND_ASSIGN(const std::string decoded, tokenizer->Decode(ids));
    EXPECT_EQ(decoded, item.Find("decoded")->string_value());
  }
}

TEST_P(GoldenTokenizerTest, SpansCoverTheTextInOrder) {
  const std::string dir = kGolden + GetParam();
  ASSERT_OK_AND_ASSIGN(auto tokenizer, Tokenizer::Load(dir));
  ASSERT_OK_AND_ASSIGN(const Json expected,
                       ReadJsonFile(dir + "/expected.json"));
  for (const Json& item : expected.items()) {
    const std::string& text = item.Find("text")->string_value();
    ASSERT_OK_AND_ASSIGN(const Encoding encoding,
                         tokenizer->EncodeWithSpans(text));
    ASSERT_EQ(encoding.ids.size(), encoding.spans.size());
    int64_t end = 0;
    for (const TextSpan& span : encoding.spans) {
      EXPECT_LE(span.begin, end) << text;
      EXPECT_GE(span.end, end) << text;
      end = span.end;
    }
    EXPECT_EQ(end, static_cast<int64_t>(text.size())) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizerTest,
                         ::testing::Values("gpt2", "qwen2", "llama3",
                                           "han_split"));

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  ASSERT_OK_AND_ASSIGN(auto tokenizer,
                       Tokenizer::FromJson(SmallTokenizer({}, kByteLevelOnly)));
  EXPECT_THAT(
      tokenizer->Encode("ab\xff"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("byte 2")));
  EXPECT_THAT(tokenizer->Decode({5000}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(TokenizerTest, MergesByRankAndLeftmostInShortAndLongWords) {
  ASSERT_OK_AND_ASSIGN(auto tokenizer,
                       Tokenizer::FromJson(SmallTokenizer(
                           {"b c", "a b", "a a", "aa a"}, kByteLevelOnly)));
  ASSERT_OK_AND_ASSIGN(const auto ids, tokenizer->Encode("abc"));
  EXPECT_THAT(ids, ElementsAre('a', 256));
  ASSERT_OK_AND_ASSIGN(const auto three, tokenizer->Encode("aaa"));
  EXPECT_THAT(three, ElementsAre(259));
  // aa is of lower rank than aaa, so it goes first everywhere.
  ASSERT_OK_AND_ASSIGN(const auto many,
                       tokenizer->Encode(std::string(1001, 'a')));
  ASSERT_EQ(many.size(), 500);
  EXPECT_EQ(many.front(), 258);
  EXPECT_EQ(many.back(), 259);
}

TEST(TokenizerTest, PutsASpaceInFrontWhereAsked) {
  ASSERT_OK_AND_ASSIGN(
      auto tokenizer, Tokenizer::FromJson(SmallTokenizer(
                          {"Ġ h"}, R"("pre_tokenizer":{"type":"ByteLevel"})")));
  ASSERT_OK_AND_ASSIGN(const Encoding encoding,
                       tokenizer->EncodeWithSpans("hi"));
  EXPECT_THAT(encoding.ids, ElementsAre(256, 'i'));
  EXPECT_THAT(encoding.spans, ElementsAre(TextSpan{0, 1}, TextSpan{1, 2}));
}

TEST(TokenizerTest, MapsSpansThroughComposedCharacters) {
  ASSERT_OK_AND_ASSIGN(
      auto tokenizer,
      Tokenizer::FromJson(SmallTokenizer(
          {},
          absl::StrCat(kByteLevelOnly, R"(,"normalizer":{"type":"NFC"})"))));
  ASSERT_OK_AND_ASSIGN(const Encoding encoding,
                       tokenizer->EncodeWithSpans("xe\u0301y"));
  EXPECT_THAT(encoding.spans, ElementsAre(TextSpan{0, 1}, TextSpan{1, 4},
                                          TextSpan{1, 4}, TextSpan{4, 5}));
}

TEST(TokenizerTest, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(
      Tokenizer::FromJson(SmallTokenizer({}, "")),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ByteLevel")));
  EXPECT_THAT(
      Tokenizer::FromJson(SmallTokenizer(
          {}, absl::StrCat(kByteLevelOnly,
                           R"(,"normalizer":{"type":"BertNormalizer"})"))),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("BertNormalizer")));
  EXPECT_THAT(Tokenizer::FromJson(R"({"model":{"type":"Unigram","vocab":[]}})"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Unigram")));
  EXPECT_THAT(
      Tokenizer::FromJson(
          R"({"model":{"type":"BPE","byte_fallback":true,"vocab":{}}})"),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("byte_fallback")));
  EXPECT_THAT(Tokenizer::Load("no/such/dir"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(TokenizerTest, TakesALongRunOfLettersWithoutFailing) {
  for (const char* name : {"han_split", "qwen2"}) {
    ASSERT_OK_AND_ASSIGN(auto tokenizer,
                         Tokenizer::Load(std::string(kGolden) + name));
    const std::string text(1 << 20, 'a');
    ASSERT_OK_AND_ASSIGN(const auto ids, tokenizer->Encode(text));
    ASSERT_OK_AND_ASSIGN(const std::string decoded, tokenizer->Decode(ids));
    EXPECT_EQ(decoded, text);
  }
}

TEST(TokenizerTest, SurvivesDamagedFiles) {
  ASSERT_OK_AND_ASSIGN(
      Json golden, ReadJsonFile(std::string(kGolden) + "qwen2/tokenizer.json"));
  const std::string good = SmallTokenizer(
      {"a b"}, absl::StrCat(kByteLevelOnly,
                            R"(,"normalizer":{"type":"NFC"},"added_tokens":)"
                            R"([{"id":300,"content":"<x>","special":true}])"));
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string damaged = good;
    for (int i = 0; i < 3; ++i) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (auto tokenizer = Tokenizer::FromJson(damaged); tokenizer.ok()) {
      (void)(*tokenizer)->Encode("ab <x> c");
    }
    (void)Tokenizer::FromJson(damaged.substr(random() % damaged.size()));
  }
}

TEST(AddedTokensTest, PrefersTheLongestAndHonoursFlags) {
  const AddedTokenMatcher matcher(
      {{.id = 1, .content = "<a>"},
       {.id = 2, .content = "<a>b"},
       {.id = 3, .content = "w", .single_word = true},
       {.id = 4, .content = "<s>", .lstrip = true, .rstrip = true}});
  const auto ids = [&](absl::string_view text) {
    std::vector<std::string> out;
    for (const auto& piece : matcher.Split(text)) {
      out.push_back(absl::StrCat(
          piece.id, ":",
          text.substr(piece.span.begin, piece.span.end - piece.span.begin)));
    }
    return out;
  };
  EXPECT_THAT(ids("x<a>b<a>"), ElementsAre("-1:x", "2:<a>b", "1:<a>"));
  EXPECT_THAT(ids("w ww wé w"), ElementsAre("3:w", "-1: ww wé ", "3:w"));
  EXPECT_THAT(ids("a <s> \u2003b"),
              ElementsAre("-1:a", "4: <s> \u2003", "-1:b"));
}

TEST(PreTokenizerTest, SplitsByEveryBehavior) {
  const auto words = [](const std::string& behavior, bool invert) {
    const std::string json = absl::StrCat(
        R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
        R"({"String":"-"},"behavior":")",
        behavior, R"(","invert":)", invert ? "true" : "false",
        R"(},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})");
    const std::string text = "a--b-c";
    std::vector<std::string> out;
    const Json parsed = ParseJson(json).value();
    const auto result = PreTokenizer::FromJson(&parsed).value().Split(text);
    for (const Word& word : *result) {
      out.push_back(
          text.substr(word.span.begin, word.span.end - word.span.begin));
    }
    return out;
  };
  EXPECT_THAT(words("Isolated", false),
              ElementsAre("a", "-", "-", "b", "-", "c"));
  EXPECT_THAT(words("Removed", false), ElementsAre("a", "b", "c"));
  EXPECT_THAT(words("Removed", true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(words("MergedWithPrevious", false),
              ElementsAre("a-", "-", "b-", "c"));
  EXPECT_THAT(words("MergedWithNext", false),
              ElementsAre("a", "-", "-b", "-c"));
  EXPECT_THAT(words("Contiguous", false),
              ElementsAre("a", "--", "b", "-", "c"));
}

std::vector<std::string> Matches(absl::string_view pattern,
                                 absl::string_view text) {
  std::vector<std::string> out;
  auto regex = Regex::Create(pattern);
  EXPECT_OK(regex);
  if (!regex.ok()) return out;
  const auto spans = (*regex)->FindAll(text);
  for (const TextSpan& span : *spans) {
    out.push_back(std::string(text.substr(span.begin, span.end - span.begin)));
  }
  return out;
}

TEST(RegexTest, IntersectsClasses) {
  EXPECT_THAT(Matches("[\\p{L}&&[^\\p{Han}]]+", "ab漢字cd"),
              ElementsAre("ab", "cd"));
  EXPECT_THAT(Matches("[a-z&&[^aeiou]&&[^x]]", "axbez"), ElementsAre("b", "z"));
  EXPECT_THAT(Matches("[^a-z&&[^aeiou]]", "abc1"), ElementsAre("a", "1"));
  EXPECT_THAT(Matches("[a[b-c]]+", "abcd"), ElementsAre("abc"));
  EXPECT_THAT(Matches("[^\\S\\n]+", "a \t\nb"), ElementsAre(" \t"));
}

TEST(RegexTest, TakesUnicodeWhiteSpaceOnly) {
  EXPECT_THAT(Matches("\\s", "\u0085x\u180e\u2003"),
              ElementsAre("\u0085", "\u2003"));
  EXPECT_THAT(Matches("[\\s]", "\u180e\u00a0"), ElementsAre("\u00a0"));
}

TEST(RegexTest, RefusesBrokenPatterns) {
  for (const char* pattern : {"[a", "(", "[a&&]", "\\", "[[[[", "(?m:.)"}) {
    EXPECT_THAT(Regex::Create(pattern),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << pattern;
  }
  std::mt19937 random(2);
  const std::string alphabet = "[]^&\\-(?:)*+{}a|sSpL";
  for (int round = 0; round < 2000; ++round) {
    std::string pattern;
    for (int i = 0; i < 12; ++i) {
      pattern.push_back(alphabet[random() % alphabet.size()]);
    }
    if (auto regex = Regex::Create(pattern); regex.ok()) {
      (void)(*regex)->FindAll("a sp-L");
    }
  }
}

TEST(NormalizerTest, ReplacesPrependsAndComposesAlignments) {
  const Json json = ParseJson(R"({"type":"Sequence","normalizers":[
      {"type":"Prepend","prepend":"_"},
      {"type":"Replace","pattern":{"String":" "},"content":"__"}]})")
                        .value();
  ASSERT_OK_AND_ASSIGN(const Normalizer normalizer,
                       Normalizer::FromJson(&json));
  ASSERT_OK_AND_ASSIGN(const NormalizedText out, normalizer.Normalize("a b"));
  EXPECT_EQ(out.text, "_a__b");
  EXPECT_EQ(out.alignment.Origin(0, 2), (TextSpan{0, 1}));
  EXPECT_EQ(out.alignment.Origin(2, 4), (TextSpan{1, 2}));
  EXPECT_EQ(out.alignment.Origin(4, 5), (TextSpan{2, 3}));
}

TEST(Utf8Test, FindsAndReplacesMalformedSequences) {
  EXPECT_EQ(FindInvalidUtf8("aé漢🙂"), -1);
  EXPECT_EQ(FindInvalidUtf8("a\xc0\x80"), 1);
  EXPECT_EQ(FindInvalidUtf8("\xed\xa0\x80"), 0);
  EXPECT_EQ(FindInvalidUtf8("\xf4\x90\x80\x80"), 0);
  EXPECT_EQ(ReplaceInvalidUtf8("a\xf0\x9f\x99z\xff"), "a\uFFFDz\uFFFD");
}

TEST(SpecialTokensTest, PrefersTheTokenizersOwnNames) {
  const std::string dir = ::testing::TempDir() + "/special_tokens";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/tokenizer_config.json")
      << R"({"eos_token": {"content": "<|im_end|>"}, "pad_token": null})";
  std::ofstream(dir + "/generation_config.json")
      << R"({"eos_token_id": [1500, 1502], "pad_token_id": 1500})";
  ASSERT_OK_AND_ASSIGN(auto tokenizer,
                       Tokenizer::Load(std::string(kGolden) + "qwen2"));
  ASSERT_OK_AND_ASSIGN(const SpecialTokens tokens,
                       FindSpecialTokens(dir, *tokenizer));
  EXPECT_EQ(tokens.eos, 1502);
  EXPECT_EQ(tokens.eos_text, "<|im_end|>");
  EXPECT_THAT(tokens.stop_ids, ElementsAre(1502, 1500));
  EXPECT_EQ(tokens.pad, 1500);
  EXPECT_EQ(tokens.pad_text, "<|endoftext|>");
  EXPECT_EQ(tokens.bos, std::nullopt);
  std::ofstream(dir + "/tokenizer_config.json") << R"({"eos_token": "<none>"})";
  EXPECT_THAT(
      FindSpecialTokens(dir, *tokenizer),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("<none>")));
}

}  // namespace
}  // namespace cadre
