#include "coordinator/ledger.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "coordinator/schema.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(Migrate(db_, ":memory:"));
    JobChange change;
    change.job().set_name("jobs/a");
    change.job().set_state(v1::JOB_STATE_VALIDATING);
    ASSERT_OK(ledger_.Save(store_, std::move(change)));
    ledger_.Publish();
  }

  JobChange Begin() { return {.record = *ledger_.Find("a")}; }
  void Move(Trigger trigger) {
    JobChange change = Begin();
    ASSERT_OK(ledger_.Apply(trigger, "", &change));
    ASSERT_OK(ledger_.Save(store_, std::move(change)));
  }
  static std::string To(const std::string& state, const std::string& cause) {
    return "cadre_job_transitions_total{cause=\"" + cause + "\",to=\"" + state +
           "\"} ";
  }

  FakeClock clock_;
  MetricsRegistry metrics_;
  JobTable table_;
  Database db_ = *Database::Open(":memory:", Database::Mode::kReadWrite);
  Store store_{&db_};
  Ledger ledger_{&table_, &clock_, &metrics_};
};

// Under load one commit takes a job from the check of its data to a gang.
TEST_F(LedgerTest, EveryStateOnTheWayThroughAGroupIsCounted) {
  Move(Trigger::kDatasetGood);
  clock_.Advance(absl::Seconds(3));
  Move(Trigger::kGangPlaced);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(To("QUEUED", "NONE"))));
  ledger_.Publish();
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr(To("VALIDATING", "NONE") + "1"));
  EXPECT_THAT(text, HasSubstr(To("QUEUED", "NONE") + "1"));
  EXPECT_THAT(text, HasSubstr(To("STARTING", "NONE") + "1"));
  EXPECT_THAT(text, HasSubstr("cadre_job_queue_wait_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("cadre_job_queue_wait_seconds_sum 3"));
}

TEST_F(LedgerTest, ARestartWithinAGroupIsCountedWithItsCause) {
  for (const Trigger trigger :
       {Trigger::kDatasetGood, Trigger::kGangPlaced, Trigger::kAllRunning}) {
    Move(trigger);
  }
  ledger_.Publish();
  JobChange change = Begin();
  change.job().mutable_failure()->set_cause(v1::FAILURE_CAUSE_WORKER_LOST);
  ASSERT_OK(ledger_.Apply(Trigger::kAttemptFailed, "", &change));
  ASSERT_OK(ledger_.Save(store_, std::move(change)));
  Move(Trigger::kGangPlaced);
  ledger_.Publish();
  clock_.Advance(absl::Seconds(5));
  Move(Trigger::kAllRunning);
  ledger_.Publish();
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr(To("RECOVERING", "WORKER_LOST") + "1"));
  EXPECT_THAT(text,
              HasSubstr("cadre_job_restarts_total{cause=\"WORKER_LOST\"} 1"));
  EXPECT_THAT(text, HasSubstr("cadre_job_recovery_seconds_sum 5"));
}

TEST_F(LedgerTest, AnAttemptThatIsGivenUpIsNoRestart) {
  for (const Trigger trigger :
       {Trigger::kDatasetGood, Trigger::kGangPlaced, Trigger::kAllRunning}) {
    Move(trigger);
  }
  JobChange change = Begin();
  change.job().mutable_failure()->set_cause(v1::FAILURE_CAUSE_NUMERIC);
  ASSERT_OK(ledger_.Apply(Trigger::kAttemptFailed, "", &change));
  ASSERT_OK(ledger_.Apply(Trigger::kGiveUp, "", &change));
  ASSERT_OK(ledger_.Save(store_, std::move(change)));
  ledger_.Publish();
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr(To("RECOVERING", "NUMERIC") + "1"));
  EXPECT_THAT(text, HasSubstr(To("FAILED", "NUMERIC") + "1"));
  EXPECT_THAT(text, HasSubstr("cadre_job_restarts_total{cause=\"NUMERIC\"} 0"));
  EXPECT_THAT(text, HasSubstr("cadre_job_failures_total{cause=\"NUMERIC\"} 1"));
}

TEST_F(LedgerTest, WhatIsRolledBackIsNotCounted) {
  Move(Trigger::kDatasetGood);
  ledger_.Rollback();
  ledger_.Publish();
  EXPECT_EQ(ledger_.Find("a")->job().state(), v1::JOB_STATE_VALIDATING);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(To("QUEUED", "NONE"))));
}

}  // namespace
}  // namespace cadre::coordinator
