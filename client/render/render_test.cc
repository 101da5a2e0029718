#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/render/diagnostics.h"
#include "client/render/progress.h"
#include "client/render/table.h"

namespace cadre::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Table, AlignsAndCutsTheLastColumn) {
  Table table({"NAME", "REASON"});
  table.Add({"j-1", "waits for 2 workers, 1 is free"});
  table.Add({"jöb", ""});
  EXPECT_EQ(table.Render(0),
            "NAME  REASON\nj-1   waits for 2 workers, 1 is free\njöb\n");
  EXPECT_EQ(table.Render(20), "NAME  REASON\nj-1   waits for 2...\njöb\n");
}

TEST(Progress, FormatsNumbers) {
  EXPECT_EQ(FormatSeconds(45), "45s");
  EXPECT_EQ(FormatSeconds(200), "3m20s");
  EXPECT_EQ(FormatSeconds(3725), "1h02m");
  EXPECT_EQ(FormatCount(640), "640");
  EXPECT_EQ(FormatCount(3400), "3.4k");
  EXPECT_EQ(FormatCount(2.8e12), "2.8T");
}

TEST(Progress, ShowsBarLossAndEta) {
  v1::Progress p;
  p.set_step(5);
  p.set_total_steps(10);
  p.set_loss(2.5);
  p.set_tokens_per_second(1500);
  p.set_eta_seconds(30);
  p.set_estimate_ready(true);
  const std::string line =
      ProgressLine(v1::JOB_STATE_RUNNING, p, {}, {.width = 100});
  EXPECT_THAT(line, HasSubstr("RUNNING [################----------------]"));
  EXPECT_THAT(line, HasSubstr("5/10  loss 2.5000"));
  EXPECT_THAT(line, HasSubstr("1.5k tok/s  eta 30s"));
  EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

TEST(Progress, ShowsWhyAJobIsQueued) {
  v1::QueueReason reason;
  reason.set_code("WAITING_FOR_WORKERS");
  reason.set_message("needs 2, 0 registered");
  EXPECT_EQ(ProgressLine(v1::JOB_STATE_QUEUED, {}, reason, {}),
            "QUEUED  WAITING_FOR_WORKERS: needs 2, 0 registered");
}

TEST(Diagnostics, ShowsLineAndCaret) {
  v1::Diagnostics d;
  auto* item = d.add_items();
  item->set_line(2);
  item->set_column(3);
  item->set_message("unknown key \"epoch\"");
  item->set_hint("did you mean \"epochs\"?");
  d.set_total(3);
  EXPECT_EQ(RenderDiagnostics(d, "job.yaml", "training:\n  epoch: 1\n", {}),
            "job.yaml:2:3: error: unknown key \"epoch\"\n"
            "    did you mean \"epochs\"?\n"
            "      epoch: 1\n"
            "      ^\n"
            "... and 2 more\n");
}

TEST(Diagnostics, NamesTheFieldWhereThereIsNoPlace) {
  v1::Diagnostics d;
  auto* item = d.add_items();
  item->set_field("model.path");
  item->set_message("required");
  EXPECT_EQ(RenderDiagnostics(d, "job.yaml", "", {}),
            "job.yaml: error: model.path: required\n");
}

TEST(Diagnostics, NamesTheFieldWhereThePlaceIsThatOfAnother) {
  v1::Diagnostics d;
  auto* item = d.add_items();
  item->set_field("data.max_seq_len");
  item->set_line(1);
  item->set_column(1);
  item->set_message("4096 is above the 128 positions of the model");
  EXPECT_THAT(RenderDiagnostics(d, "job.yaml", "data:\n", {}),
              HasSubstr("job.yaml:1:1: error: data.max_seq_len: 4096 is"));
}

TEST(Diagnostics, DataFindingsNameTheirFile) {
  v1::Diagnostics d;
  auto* item = d.add_items();
  item->set_file("train.jsonl");
  item->set_line(7);
  item->set_message("not JSON");
  EXPECT_EQ(RenderDiagnostics(d, "job.yaml", "a\nb\n", {}),
            "train.jsonl:7: error: not JSON\n");
}

}  // namespace
}  // namespace cadre::client
