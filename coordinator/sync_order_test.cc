// Sync as a bad network delivers it: late, twice, out of order; and what is
// still there after the coordinator is gone.

#include "coordinator/server_fixture.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {
namespace {

using Jobs = v1::JobService::Stub;

class SyncOrderTest : public ServerFixture {
 protected:
  void WarmUp() {
    for (int second = 0; second < 11; ++second) {
      clock_.Advance(absl::Seconds(1));
      CountedSync();
    }
  }
  // As a real worker, which counts its calls.
  void CountedSync() {
    workers_[0]->mutable_state().set_sync_seq(++sync_seq_);
    ASSERT_OK(workers_[0]->Sync(sync_.get()));
  }
  void TrainTo(const std::string& name, int64_t step) {
    workers_[0]->hold_at_step = step;
    for (int i = 0; i < 10000 && workers_[0]->step() < step; ++i) {
      CountedSync();
      if (HasFailure()) return;
    }
    CountedSync();
    ASSERT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
  }
  v1::SyncResponse Deliver(const v1::SyncRequest& request) {
    grpc::ClientContext context;
    v1::SyncResponse reply;
    EXPECT_OK(FromGrpcStatus(sync_->Sync(&context, request, &reply)));
    return reply;
  }
  // All that a client could see of the job.
  std::string Everything(const std::string& name) {
    std::string all = Get(name).DebugString();
    for (const auto& message : Watch(name, 0, true)) {
      all += message.event().DebugString();
    }
    v1::GetMetricsRequest metrics;
    metrics.set_name(name);
    const auto series = Call(jobs_, &Jobs::GetMetrics, metrics);
    EXPECT_OK(series);
    return series.ok() ? all + series->DebugString() : all;
  }

  int64_t sync_seq_ = 0;
};

TEST_F(SyncOrderTest, AnOlderCallThatComesLateChangesNothing) {
  AddWorkers(1);
  WarmUp();
  const v1::SyncRequest idle = workers_[0]->state();
  const std::string name = MustCreate(1, 1000);
  TrainTo(name, 3);
  const v1::SyncRequest third = workers_[0]->state();
  TrainTo(name, 6);
  const std::string before = Everything(name);
  v1::SyncRequest wrong = third;  // reports that were never made
  auto* saved = wrong.add_reports();
  saved->set_report_seq(1'000'000);
  saved->set_attempt_epoch(1);
  saved->mutable_event()->set_type("WARNING");
  saved->mutable_event()->set_message("late");
  auto* values = wrong.add_reports();
  values->set_report_seq(1'000'001);
  values->set_attempt_epoch(1);
  values->mutable_scalars()->set_step(2);
  (*values->mutable_scalars()->mutable_values())["loss"] = 77.0;
  v1::SyncRequest ended = third;
  ended.mutable_ended()->set_result(v1::EndedState::RESULT_ERROR);
  for (const v1::SyncRequest* late : std::vector<const v1::SyncRequest*>{
           &idle, &third, &wrong, &ended, &idle}) {
    const v1::SyncResponse reply = Deliver(*late);
    EXPECT_EQ(reply.desired_case(), v1::SyncResponse::DESIRED_NOT_SET);
    EXPECT_EQ(reply.accepted_report_seq(), 0);
  }
  clock_.Advance(absl::Milliseconds(50));
  EXPECT_EQ(Everything(name), before);
  // The newest once more is no news either, and the job goes on.
  const v1::SyncResponse again = Deliver(workers_[0]->state());
  EXPECT_TRUE(again.has_run());
  EXPECT_EQ(Everything(name), before);
  TrainTo(name, 9);
  EXPECT_EQ(Get(name).attempts_size(), 1);
}

TEST_F(SyncOrderTest, ACallOfAFormerAttemptChangesNothing) {
  AddWorkers(1);
  WarmUp();
  const std::string name = MustCreate(1, 1000);
  TrainTo(name, 5);
  const v1::SyncRequest former = workers_[0]->state();
  workers_[0]->Fail(v1::FAILURE_CAUSE_DEVICE_ERROR, "broken");
  for (int i = 0; i < 10000 && Get(name).attempt_epoch() < 2; ++i) {
    CountedSync();
  }
  TrainTo(name, 7);
  const std::string before = Everything(name);
  EXPECT_EQ(Deliver(former).desired_case(), v1::SyncResponse::DESIRED_NOT_SET);
  EXPECT_EQ(Everything(name), before);
  TrainTo(name, 9);
  EXPECT_EQ(Get(name).attempts_size(), 2);
}

TEST_F(SyncOrderTest, WhatASyncAcceptedOfValuesIsWrittenBeforeTheAnswer) {
  AddWorkers(1);
  WarmUp();
  const std::string name = MustCreate(1, 1000);
  TrainTo(name, 5);
  ASSERT_EQ(workers_[0]->state().reports_size(), 0);
  // As another process sees the file, without the server's help.
  ASSERT_OK_AND_ASSIGN(Database db,
                       Database::Open(absl::StrCat(dir_, "/state/series.db"),
                                      Database::Mode::kReadOnly));
  ASSERT_OK_AND_ASSIGN(
      Statement count,
      db.Prepare("SELECT count(*), max(step) FROM points JOIN series ON "
                 "series.id = series WHERE name = 'loss'"));
  ASSERT_OK(count.Step().status());
  EXPECT_EQ(count.Int(0), 5);
  EXPECT_EQ(count.Int(1), 5);
}

}  // namespace
}  // namespace cadre::coordinator
