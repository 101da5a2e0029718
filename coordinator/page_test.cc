#include "coordinator/page.h"

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "coordinator/order.h"

namespace cadre::coordinator {
namespace {

using ::testing::HasSubstr;

RecordPtr Record(int64_t sequence, v1::JobState state, int priority) {
  auto record = std::make_shared<state::v1::JobRecord>();
  record->set_create_sequence(sequence);
  v1::Job* job = record->mutable_job();
  job->set_name(absl::StrCat("jobs/j", sequence));
  job->set_state(state);
  job->set_priority(priority);
  job->set_owner("local");
  (*job->mutable_labels())["team"] = sequence % 2 == 0 ? "nlp" : "speech";
  job->mutable_create_time()->set_seconds(1'700'000'000 + sequence);
  return record;
}

class ListTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<RecordPtr> records;
    for (int i = 1; i <= 7; ++i) {
      records.push_back(Record(
          i, i <= 3 ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_QUEUED, i * 10));
    }
    table_.Publish(records);
  }
  // Names over all pages.
  std::string List(const std::string& filter, int page_size) {
    std::string names;
    v1::ListJobsRequest request;
    request.set_filter(filter);
    request.set_page_size(page_size);
    do {
      auto page = ListJobs(table_, request);
      if (!page.ok()) return std::string(page.status().message());
      for (const v1::Job& job : page->jobs()) {
        absl::StrAppend(&names, job.name().substr(5), " ");
      }
      absl::StrAppend(&names, "|");
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return names;
  }
  JobTable table_;
};

TEST_F(ListTest, PagesAreNewestFirstAndComplete) {
  EXPECT_EQ(List("", 3), "j7 j6 j5 |j4 j3 j2 |j1 |");
  EXPECT_EQ(List("", 0), "j7 j6 j5 j4 j3 j2 j1 |");
  // A page that ends exactly at the last job needs no further call.
  EXPECT_EQ(List("", 7), "j7 j6 j5 j4 j3 j2 j1 |");
}

TEST_F(ListTest, InsertsDoNotShiftPages) {
  v1::ListJobsRequest request;
  request.set_page_size(3);
  const auto first = ListJobs(table_, request);
  table_.Publish({Record(8, v1::JOB_STATE_QUEUED, 1)});
  request.set_page_token(first->next_page_token());
  EXPECT_EQ(ListJobs(table_, request)->jobs(0).name(), "jobs/j4");
}

TEST_F(ListTest, FiltersByEveryField) {
  EXPECT_EQ(List("state = SUCCEEDED", 50), "j3 j2 j1 |");
  EXPECT_EQ(List("state != SUCCEEDED AND priority >= 60", 50), "j7 j6 |");
  EXPECT_EQ(List("label.team = \"nlp\"", 50), "j6 j4 j2 |");
  EXPECT_EQ(List("label.none != x AND priority<20", 50), "j1 |");
  EXPECT_EQ(List("create_time <= 2023-11-14T22:13:22Z", 50), "j2 j1 |");
  EXPECT_EQ(List("owner = someone", 50), "|");
  EXPECT_EQ(List("queue_reason = RETRY_BACKOFF", 50), "|");
}

TEST_F(ListTest, AFilterErrorNamesItsColumn) {
  for (const auto& [filter, column] :
       std::map<std::string, int>{{"stat = QUEUED", 1},
                                  {"state QUEUED", 7},
                                  {"state = QUEUD", 9},
                                  {"state = QUEUED OR state = FAILED", 16},
                                  {"priority > high", 12},
                                  {"owner > a", 7},
                                  {"owner = \"a", 9},
                                  {"create_time > today", 15},
                                  {"state =", 8}}) {
    const auto parsed = JobFilter::Parse(filter);
    ASSERT_FALSE(parsed.ok()) << filter;
    EXPECT_EQ(ErrorReason(parsed.status()), "FILTER_INVALID");
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr(absl::StrCat("column ", column, ":")))
        << filter;
  }
}

TEST_F(ListTest, ATokenBelongsToItsQuery) {
  v1::ListJobsRequest request;
  request.set_page_size(2);
  const std::string token = ListJobs(table_, request)->next_page_token();
  request.set_page_token(token);
  request.set_filter("state = QUEUED");
  EXPECT_EQ(ErrorReason(ListJobs(table_, request).status()),
            "PAGE_TOKEN_INVALID");
  request.set_page_token("nonsense!");
  EXPECT_EQ(ErrorReason(ListJobs(table_, request).status()),
            "PAGE_TOKEN_INVALID");
}

TEST_F(ListTest, ComesInTheOrderAskedFor) {
  const auto all = [&](const std::string& order_by, int page_size) {
    v1::ListJobsRequest request;
    request.set_order_by(order_by);
    request.set_page_size(page_size);
    std::string text;
    for (;;) {
      const auto page = ListJobs(table_, request);
      EXPECT_OK(page);
      if (!page.ok()) return text;
      for (const auto& job : page->jobs()) {
        absl::StrAppend(&text, JobId(job.name()), " ");
      }
      request.set_page_token(page->next_page_token());
      if (page->next_page_token().empty()) return text;
      absl::StrAppend(&text, "| ");
    }
  };
  EXPECT_EQ(all("create_time", 3), "j1 j2 j3 | j4 j5 j6 | j7 ");
  EXPECT_EQ(all(" create_time  desc ", 5), "j7 j6 j5 j4 j3 | j2 j1 ");
  EXPECT_EQ(all("name desc", 10), "j7 j6 j5 j4 j3 j2 j1 ");
  table_.Publish({Record(8, v1::JOB_STATE_QUEUED, 30),
                  Record(9, v1::JOB_STATE_QUEUED, 30)});
  const std::string by_priority = all("priority", 2);
  EXPECT_THAT(by_priority, HasSubstr("j9 j8")) << by_priority;
  EXPECT_THAT(all("priority, create_time", 20), HasSubstr("j8 j9"));
}

TEST_F(ListTest, AnOrderErrorNamesThePart) {
  for (const char* order : {"age", "priority up", "priority,",
                            "name, name desc", "name asc desc"}) {
    const auto parsed = JobOrder::Parse(order);
    ASSERT_FALSE(parsed.ok()) << order;
    EXPECT_EQ(ErrorReason(parsed.status()), "ORDER_INVALID");
  }
  v1::ListJobsRequest request;
  request.set_page_size(2);
  request.set_order_by("name");
  request.set_page_token(ListJobs(table_, request)->next_page_token());
  request.set_order_by("name desc");
  EXPECT_EQ(ErrorReason(ListJobs(table_, request).status()),
            "PAGE_TOKEN_INVALID");
}

TEST_F(ListTest, TheBasicViewHasAllButThreeFields) {
  state::v1::JobRecord record;
  v1::Job* job = record.mutable_job();
  const auto* reflection = job->GetReflection();
  const auto* descriptor = job->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->is_repeated()) {
      reflection->AddMessage(job, field);
    } else if (field->message_type() != nullptr) {
      reflection->MutableMessage(job, field);
    } else if (field->enum_type() != nullptr) {
      reflection->SetEnumValue(job, field, 2);
    } else if (field->type() == field->TYPE_STRING) {
      reflection->SetString(job, field, "x");
    } else if (field->type() == field->TYPE_INT32) {
      reflection->SetInt32(job, field, 7);
    } else {
      reflection->SetInt64(job, field, 7);
    }
  }
  v1::Job basic = *job;
  basic.clear_config_snapshot();
  basic.clear_attempts();
  basic.clear_restarts_left();
  EXPECT_EQ(table_.View(record, true).DebugString(), job->DebugString());
  EXPECT_EQ(table_.View(record, false).DebugString(), basic.DebugString());
}

TEST(PageSize, IsLoweredButNeverNegative) {
  EXPECT_EQ(*PageSize(0), 50);
  EXPECT_EQ(*PageSize(5000), 1000);
  EXPECT_FALSE(PageSize(-1).ok());
}

}  // namespace
}  // namespace cadre::coordinator
