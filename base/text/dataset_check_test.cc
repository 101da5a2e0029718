#include "base/text/dataset_check.h"

#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/text/jsonl_reader.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModel[] = "tests/golden/tokenizers/qwen2";

class DatasetCheckTest : public ::testing::Test {
 protected:
  DatasetCheckTest() { dir_ = testing::NewTestFolder(); }
  std::string Write(const std::string& name, const std::string& contents) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }
  std::string dir_;
};

std::vector<std::string> Codes(const DatasetReport& report) {
  std::vector<std::string> codes;
  for (const DataError& error : report.errors) {
    codes.push_back(std::to_string(error.line) + ":" +
                    std::string(DataErrorCodeName(error.code)));
  }
  return codes;
}

TEST_F(DatasetCheckTest, CountsTokensOfGoodData) {
  Write("a.jsonl", "{\"text\": \"Hello world, hello\"}\n\n");
  Write("b.jsonl", "{\"text\": \"a longer text than the other one\"}\r\n");
  ASSERT_OK_AND_ASSIGN(const DatasetReport report,
                       CheckDataset({dir_ + "/*.jsonl"}, kModel, {}));
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.format, DataFormat::kText);
  EXPECT_EQ(report.files.size(), 2);
  EXPECT_EQ(report.num_warnings, 1);  // the blank line
  const TokenStats& stats = *report.token_stats;
  EXPECT_EQ(stats.records, 2);
  EXPECT_EQ(stats.loss_tokens, stats.total_tokens - 2);
  EXPECT_EQ(stats.min + stats.max, stats.total_tokens);
  EXPECT_EQ(stats.rows, 1);
}

TEST_F(DatasetCheckTest, ReportsEveryBadLine) {
  const std::string path = Write(
      "bad.jsonl",
      "{\"text\": \"good one\"}\n{\"text\": 1}\nnot json\n"
      "{\"prompt\": \"a\", \"completion\": \"b\"}\n\xff\xfe\n" +
          std::string(kMaxJsonlLineBytes + 1, ' ') + "\n{\"text\": \"\"}");
  ASSERT_OK_AND_ASSIGN(const DatasetReport report,
                       CheckDataset({path}, kModel, {}));
  EXPECT_THAT(Codes(report), ElementsAre("2:TYPE", "3:JSON", "4:MIXED_FORMAT",
                                         "5:UTF8", "6:TOO_LONG", "7:EMPTY"));
  EXPECT_EQ(report.num_errors, 6);
  EXPECT_EQ(report.errors[1].column, 1);
}

TEST_F(DatasetCheckTest, KeepsTheFirstErrorsAndCountsAll) {
  std::string lines;
  for (int i = 0; i < 250; ++i) lines += "[]\n";
  ASSERT_OK_AND_ASSIGN(const DatasetReport report,
                       CheckDataset({Write("x.jsonl", lines)}, "", {}));
  EXPECT_EQ(report.errors.size(), 100);
  EXPECT_EQ(report.num_errors, 250);
  EXPECT_EQ(report.format, DataFormat::kAuto);
  EXPECT_FALSE(report.token_stats.has_value());
}

TEST_F(DatasetCheckTest, ReadsTheHeadOnlyWhereAsked) {
  std::string lines;
  for (int i = 0; i < 250; ++i) lines += "{\"text\": \"good\"}\n";
  const std::string path = Write("x.jsonl", lines + "bad\n");
  ASSERT_OK_AND_ASSIGN(DatasetReport report,
                       CheckDataset({path}, "", {.head_only = true}));
  EXPECT_TRUE(report.ok());
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.files[0].records, 100);
  ASSERT_OK_AND_ASSIGN(
      report, CheckDataset({path}, "", {.head_only = true, .head_bytes = 64}));
  EXPECT_LT(report.files[0].records, 10);
  ASSERT_OK_AND_ASSIGN(report, CheckDataset({path}, "", {}));
  EXPECT_EQ(report.num_errors, 1);
}

TEST_F(DatasetCheckTest, NotesTruncatedAndDroppedLines) {
  std::string lines = "{\"text\": \"short one\"}\n{\"text\": \"";
  for (int i = 0; i < 99; ++i) lines += "word ";
  lines += "\"}\n";
  const std::string path = Write("x.jsonl", lines);
  DatasetCheckOptions options;
  options.encode.max_seq_len = 16;
  ASSERT_OK_AND_ASSIGN(DatasetReport report,
                       CheckDataset({path}, kModel, options));
  EXPECT_EQ(report.token_stats->truncated, 1);
  EXPECT_THAT(report.token_stats->truncated_lines,
              ElementsAre(LineRef{path, 2}));
  EXPECT_GT(report.token_stats->max, 16);
  EXPECT_EQ(report.token_stats->rows, 2);
  options.encode.too_long = TooLong::kDrop;
  ASSERT_OK_AND_ASSIGN(report, CheckDataset({path}, kModel, options));
  EXPECT_THAT(report.token_stats->dropped_lines, ElementsAre(LineRef{path, 2}));
  EXPECT_EQ(report.token_stats->rows, 1);
  options.encode.too_long = TooLong::kError;
  ASSERT_OK_AND_ASSIGN(report, CheckDataset({path}, kModel, options));
  EXPECT_THAT(Codes(report), ElementsAre("2:TOO_LONG"));
}

TEST_F(DatasetCheckTest, RefusesMissingEmptyAndMarkedFiles) {
  EXPECT_THAT(CheckDataset({dir_ + "/no*.jsonl"}, "", {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no*.jsonl")));
  EXPECT_THAT(CheckDataset({dir_}, "", {}),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(DatasetReport report,
                       CheckDataset({Write("e.jsonl", "")}, "", {}));
  EXPECT_THAT(Codes(report), ElementsAre("0:EMPTY"));
  ASSERT_OK_AND_ASSIGN(
      report,
      CheckDataset({Write("b.jsonl", "\xEF\xBB\xBF{\"text\": \"a b\"}")}, "",
                   {}));
  EXPECT_THAT(Codes(report), ElementsAre("1:UTF8"));
  const std::atomic<bool> cancelled = true;
  EXPECT_THAT(
      CheckDataset({Write("c.jsonl", "{}")}, "", {.cancelled = &cancelled}),
      StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(DatasetCheckTest, ReadsLinesAcrossBuffers) {
  std::string contents;
  for (int i = 0; i < 3; ++i) contents += std::string(700'000, 'a' + i) + "\n";
  ASSERT_OK_AND_ASSIGN(auto reader,
                       JsonlReader::Open(Write("long", contents + "end")));
  JsonlLine line;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const bool more, reader->Next(&line));
    ASSERT_TRUE(more);
    EXPECT_EQ(line.text, std::string(700'000, 'a' + i));
    EXPECT_EQ(line.offset, i * 700'001);
  }
  ASSERT_OK_AND_ASSIGN(bool more, reader->Next(&line));
  EXPECT_TRUE(more);
  EXPECT_EQ(line.text, "end");
  EXPECT_EQ(line.number, 4);
  ASSERT_OK_AND_ASSIGN(more, reader->Next(&line));
  EXPECT_FALSE(more);
}

TEST(TokenStatsTest, TakesNearestRanksAndBuckets) {
  TokenStatsCollector collector(1 << 20, false);
  for (int length = 1; length <= 100; ++length) {
    EncodedSample sample;
    sample.ids.assign(length, 0);
    sample.trained.assign(length, 1);
    sample.full_length = length;
    collector.Add(sample, "f", length);
  }
  const TokenStats stats = collector.Finish();
  EXPECT_EQ(stats.min, 1);
  EXPECT_EQ(stats.p5, 5);
  EXPECT_EQ(stats.p50, 50);
  EXPECT_EQ(stats.p99, 99);
  EXPECT_EQ(stats.max, 100);
  EXPECT_EQ(stats.log2_buckets[0], 1);
  EXPECT_EQ(stats.log2_buckets[5], 32);
  EXPECT_EQ(stats.log2_buckets[6], 37);
  EXPECT_EQ(stats.rows, 100);
}

TEST(TokenStatsTest, FirstFitTakesTheLeftmostRowWithSpace) {
  EXPECT_THAT(FirstFitRows({6, 5, 4, 5, 1, 10, 1}, 10),
              ElementsAre(0, 1, 0, 1, 2, 3, 2));
  EXPECT_TRUE(FirstFitRows({}, 10).empty());
}

}  // namespace
}  // namespace cadre
