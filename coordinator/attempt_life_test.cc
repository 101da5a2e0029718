// Jobs from creation to their end on a real server with scripted workers.

#include "coordinator/server_fixture.h"

namespace cadre::coordinator {
namespace {

using ::testing::HasSubstr;

class AttemptTest : public ServerFixture {
 protected:
  // Past the time in which a new coordinator places nothing.
  void WarmUp() {
    for (int second = 0; second < 11; ++second) {
      clock_.Advance(absl::Seconds(1));
      SyncAll();
    }
  }
  void RunTo(const std::string& job, v1::JobState state) {
    ASSERT_TRUE(SyncUntilState(job, state));
  }
};

TEST_F(AttemptTest, AJobRunsFromCreationToItsResult) {
  AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  const v1::Job job = Get(name);
  EXPECT_EQ(job.attempt_epoch(), 1);
  ASSERT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.attempts(0).to_step(), 10);
  EXPECT_EQ(job.attempts(0).workers_size(), 2);
  EXPECT_EQ(job.latest_checkpoint().step(), 10);
  EXPECT_EQ(job.latest_checkpoint().bytes(), 2);  // both ranks' files
  ASSERT_EQ(job.artifacts_size(), 1);
  EXPECT_EQ(job.artifacts(0).name(), name + "/artifacts/adapter");
  EXPECT_EQ(job.progress().step(), 10);
  EXPECT_EQ(job.progress().percent(), 100);
  EXPECT_FALSE(job.has_failure());
  // The workers are free again and take the next job.
  const std::string next = MustCreate(2);
  ASSERT_TRUE(SyncUntilState(next, v1::JOB_STATE_SUCCEEDED));
  EXPECT_EQ(Get(next).attempt_epoch(), 1);
}

TEST_F(AttemptTest, RanksMeetOnlyOnceAllHavePublished) {
  AddWorkers(3);
  WarmUp();
  const std::string name = MustCreate(3);
  workers_[2]->hold_prepare = true;
  ASSERT_TRUE(SyncUntil([&] { return workers_[0]->state().has_ready(); }));
  EXPECT_EQ(workers_[0]->last_reply.rendezvous().values_size(), 3);
  // One rank is not ready: nobody trains.
  for (int i = 0; i < 5; ++i) SyncAll();
  EXPECT_TRUE(workers_[0]->state().has_ready());
  EXPECT_EQ(Get(name).state(), v1::JOB_STATE_STARTING);
  workers_[2]->hold_prepare = false;
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
}

TEST_F(AttemptTest, ARestartedWorkerEndsTheAttemptAndTheJobResumes) {
  AddWorkers(3);
  WarmUp();
  const std::string name = MustCreate(2);
  for (auto& worker : workers_) worker->hold_at_step = 6;
  ASSERT_TRUE(
      SyncUntil([&] { return Get(name).latest_checkpoint().step() == 4; }));
  const std::string lost = Get(name).attempts(0).workers(1);
  for (auto& worker : workers_) {
    worker->hold_at_step = -1;
    if (worker->state().worker_id() == lost) {
      worker = std::make_unique<FakeWorker>(lost, "second");
    }
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  const v1::Job job = Get(name);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).cause(), v1::FAILURE_CAUSE_WORKER_LOST);
  EXPECT_THAT(job.attempts(0).detail(), HasSubstr(lost));
  EXPECT_EQ(job.attempts(1).from_step(), 4);
  EXPECT_EQ(job.restarts_left().at("WORKER_LOST"), 9);
  EXPECT_FALSE(job.has_failure());
}

TEST_F(AttemptTest, ALostLeaseIsAVerdictOnlyWhenThePeersStall) {
  AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2, 1000);
  for (auto& worker : workers_) worker->save_every = 0;
  RunTo(name, v1::JOB_STATE_RUNNING);
  // The second falls silent while the first still advances.
  auto silent = std::move(workers_[1]);
  for (int second = 0; second < 30; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  EXPECT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
  // Now it stalls: its peer must be dead.
  workers_[0]->hold_at_step = workers_[0]->step();
  for (int second = 0; second < 10; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_RECOVERING));
  EXPECT_EQ(Get(name).failure().cause(), v1::FAILURE_CAUSE_WORKER_LOST);
  ASSERT_TRUE(SyncUntil([&] { return workers_[0]->state().has_idle(); }));
  // A minute without a replacement: back to the queue, at its head.
  for (int second = 0; second < 61; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_QUEUED));
  ASSERT_TRUE(SyncUntil([&] {
    return Get(name).queue_reason().code() == "WAITING_FOR_REPLACEMENT";
  }));
  // The worker was only cut off: when it comes back it is told to stop.
  ASSERT_OK(silent->Sync(sync_.get()));
  EXPECT_EQ(silent->last_reply.stop().mode(), v1::STOP_MODE_NOW);
  workers_[1] = std::move(silent);
  workers_[0]->hold_at_step = -1;
  ASSERT_TRUE(SyncUntil([&] { return Get(name).attempt_epoch() == 2; }));
}

TEST_F(AttemptTest, AJobGoesOnWithFewerWorkersAfterAWhile) {
  AddWorkers(3);
  WarmUp();
  auto request = Request(3, 1000);
  request.set_job_yaml(request.job_yaml() + "  min_workers: 2\n");
  ASSERT_OK_AND_ASSIGN(const auto created, Create(request));
  const std::string name = created.job().name();
  RunTo(name, v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(
      SyncUntil([&] { return Get(name).latest_checkpoint().step() >= 4; }));
  // One is gone for good; the others stall and are told to stop.
  workers_.pop_back();
  for (auto& worker : workers_) worker->hold_at_step = worker->step();
  for (int second = 0; second < 20; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_RECOVERING));
  v1::Job job = Get(name);
  EXPECT_EQ(job.failure().cause(), v1::FAILURE_CAUSE_WORKER_LOST);
  EXPECT_EQ(job.attempt_epoch(), 1) << "it waits for a replacement first";
  for (auto& worker : workers_) worker->hold_at_step = -1;
  for (int second = 0; second < 31; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_RUNNING));
  job = Get(name);
  EXPECT_EQ(job.attempt_epoch(), 2);
  EXPECT_EQ(job.plan().world_size(), 2);
  EXPECT_EQ(job.plan().accumulation_steps(), 6);
  EXPECT_EQ(job.plan().total_steps(), 1000);
  EXPECT_EQ(job.attempts(1).workers_size(), 2);
  EXPECT_GE(job.attempts(1).from_step(), 4);
  EXPECT_EQ(workers_[0]->assignment().plan().world_size(), 2);
  // With a worker more the next attempt is whole again.
  AddWorkers(1);
  SyncAll();
  workers_[0]->Fail(v1::FAILURE_CAUSE_INTERNAL, "broken");
  ASSERT_TRUE(SyncUntil([&] { return Get(name).attempt_epoch() == 3; }));
  EXPECT_EQ(Get(name).plan().world_size(), 3);
}

TEST_F(AttemptTest, EveryRankHearsTheLinkDomainsOfAll) {
  AddWorkers(3);
  // The third has none: its host stands for it.
  workers_[0]->mutable_state().mutable_device()->set_link_domain("rack-7");
  workers_[1]->mutable_state().mutable_device()->set_link_domain("rack-8");
  WarmUp();
  const std::string name = MustCreate(3, 1000);
  RunTo(name, v1::JOB_STATE_RUNNING);
  std::map<std::string, std::string> expected;
  for (const auto& worker : workers_) {
    const v1::Device& device = worker->state().device();
    expected[worker->state().worker_id()] =
        device.link_domain().empty() ? device.hostname() : device.link_domain();
  }
  for (const auto& worker : workers_) {
    const v1::Assignment& assignment = worker->assignment();
    ASSERT_EQ(assignment.link_domains_size(), 3);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(assignment.link_domains(rank),
                expected[assignment.workers(rank)]);
    }
  }
}

TEST_F(AttemptTest, TheFirstCauseIsNotHiddenByItsEchoes) {
  AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2, 1000);
  RunTo(name, v1::JOB_STATE_RUNNING);
  const int first = workers_[0]->assignment().rank() == 0 ? 0 : 1;
  workers_[first]->Fail(v1::FAILURE_CAUSE_COMMUNICATION, "peer gone", true);
  ASSERT_OK(workers_[first]->Sync(sync_.get()));
  EXPECT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
  workers_[1 - first]->Fail(v1::FAILURE_CAUSE_OUT_OF_MEMORY, "needs 90 GiB");
  ASSERT_OK(workers_[1 - first]->Sync(sync_.get()));
  const v1::Job job = Get(name);
  EXPECT_EQ(job.attempts(0).cause(), v1::FAILURE_CAUSE_OUT_OF_MEMORY);
  EXPECT_EQ(job.restarts_left().at("OUT_OF_MEMORY"), 0);
  EXPECT_THAT(job.failure().status().message(), HasSubstr("90 GiB"));
}

TEST_F(AttemptTest, AnEchoIsTheFaultOfThePeerThatFellSilent) {
  AddWorkers(3);
  WarmUp();
  const std::string name = MustCreate(3, 1000);
  for (auto& worker : workers_) worker->save_every = 0;
  RunTo(name, v1::JOB_STATE_RUNNING);
  for (auto& worker : workers_) worker->hold_at_step = worker->step();
  const int rank = workers_[2]->assignment().rank();
  const auto silent = std::move(workers_[2]);
  workers_.pop_back();
  // Of the two peers, one saw the other give up.
  workers_[0]->Fail(v1::FAILURE_CAUSE_COMMUNICATION, "the second is gone",
                    true);
  for (int second = 0; second < 8; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_RECOVERING));
  const v1::Job job = Get(name);
  const std::string lost =
      absl::StrCat("rank ", rank, " (worker ", job.attempts(0).workers(rank),
                   ") has not called for ");
  EXPECT_EQ(job.attempts(0).cause(), v1::FAILURE_CAUSE_COMMUNICATION);
  EXPECT_THAT(job.attempts(0).detail(), HasSubstr(lost));
  EXPECT_THAT(job.attempts(0).detail(), HasSubstr("the second is gone"));
  EXPECT_THAT(job.failure().status().message(), HasSubstr(lost));
}

TEST_F(AttemptTest, ASpentBudgetFailsTheJobWithItsEvidence) {
  AddWorkers(1);
  WarmUp();
  const std::string name = MustCreate(1, 1000);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    ASSERT_TRUE(SyncUntil([&] {
      return Get(name).attempt_epoch() == attempt &&
             Get(name).state() == v1::JOB_STATE_RUNNING;
    }));
    workers_[0]->Fail(v1::FAILURE_CAUSE_NUMERIC, "loss is NaN");
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_FAILED));
  const v1::Job job = Get(name);
  EXPECT_EQ(job.failure().cause(), v1::FAILURE_CAUSE_NUMERIC);
  EXPECT_TRUE(job.failure().user_error());
  ASSERT_TRUE(SyncUntil([&] { return workers_[0]->state().has_idle(); }));
}

TEST_F(AttemptTest, OldCheckpointsAreHandedToRankZeroForRemoval) {
  AddWorkers(1);
  WarmUp();
  workers_[0]->save_every = 2;
  workers_[0]->hold_at_step = 9;
  const std::string name = MustCreate(1, 12);
  ASSERT_TRUE(
      SyncUntil([&] { return Get(name).latest_checkpoint().step() == 8; }));
  ASSERT_OK(workers_[0]->Sync(sync_.get()));
  // keep_last is 2. Folders that are gone already are not asked for again.
  ASSERT_GE(workers_[0]->last_reply.remove_checkpoints_size(), 1);
  EXPECT_THAT(workers_[0]->last_reply.remove_checkpoints().rbegin()->c_str(),
              HasSubstr("step-4.attempt-1"));
}

TEST_F(AttemptTest, CancelStopsTheWorkersFirst) {
  AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2, 1000);
  RunTo(name, v1::JOB_STATE_RUNNING);
  ASSERT_OK_AND_ASSIGN(const auto response, Cancel(name));
  EXPECT_EQ(response.job().state(), v1::JOB_STATE_CANCELLING);
  ASSERT_OK(Cancel(name));  // repeated
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_CANCELLED));
  ASSERT_OK(Cancel(name));
  ASSERT_TRUE(SyncUntil([&] { return workers_[1]->state().has_idle(); }));
}

TEST_F(AttemptTest, ALeavingWorkerSavesAndItsJobGoesOnElsewhere) {
  AddWorkers(1);
  WarmUp();
  const std::string name = MustCreate(1);
  workers_[0]->hold_at_step = 5;
  ASSERT_TRUE(SyncUntil([&] { return workers_[0]->step() == 5; }));
  RunTo(name, v1::JOB_STATE_RUNNING);
  workers_[0]->Drain();
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_QUEUED));
  AddWorkers(1);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  EXPECT_EQ(Get(name).attempts(1).workers(0), "host.1");
  EXPECT_EQ(Get(name).attempts(0).cause(), v1::FAILURE_CAUSE_DRAINED);
  EXPECT_EQ(Get(name).restarts_left().at("WORKER_LOST"), 10);
}

TEST_F(AttemptTest, AnOlderProcessOfAWorkerIsToldToLeave) {
  AddWorkers(1);
  SyncAll();
  auto old = std::move(workers_[0]);
  workers_[0] = std::make_unique<FakeWorker>("host.0", "second");
  SyncAll();
  ASSERT_OK(old->Sync(sync_.get()));
  EXPECT_TRUE(old->last_reply.has_exit());
  SyncAll();
  EXPECT_TRUE(workers_[0]->last_reply.has_idle());
}

TEST_F(AttemptTest, MaxRuntimeEndsTheJobAfterASave) {
  AddWorkers(1);
  WarmUp();
  auto request = Request(1, 100000);
  request.set_job_yaml(request.job_yaml() + "max_runtime: 1m\n");
  ASSERT_OK_AND_ASSIGN(const auto created, Create(request));
  const std::string name = created.job().name();
  RunTo(name, v1::JOB_STATE_RUNNING);
  for (int second = 0; second < 62; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_FAILED));
  EXPECT_EQ(Get(name).failure().cause(), v1::FAILURE_CAUSE_DEADLINE);
}

// The server is replaced in each phase; the workers keep their processes, so
// the attempt must go on as if nothing had happened.
enum class Phase { kQueued, kPlaced, kReady, kRunning, kSealing, kExporting };
class RestartTest : public AttemptTest,
                    public ::testing::WithParamInterface<Phase> {};

TEST_P(RestartTest, ARestartOfTheCoordinatorCostsNothing) {
  if (GetParam() != Phase::kQueued) AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2);
  switch (GetParam()) {
    case Phase::kQueued:
      ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_QUEUED));
      AddWorkers(2);
      break;
    case Phase::kPlaced: {
      // Committed, but no worker has heard of it.
      const absl::Time deadline = absl::Now() + absl::Seconds(100);
      while (Get(name).state() != v1::JOB_STATE_STARTING &&
             absl::Now() < deadline) {
      }
      break;
    }
    case Phase::kReady:
      workers_[1]->hold_prepare = true;
      ASSERT_TRUE(SyncUntil([&] { return workers_[0]->state().has_ready(); }));
      workers_[1]->hold_prepare = false;
      break;
    case Phase::kRunning:
      for (auto& worker : workers_) worker->hold_at_step = 3;
      ASSERT_TRUE(SyncUntil([&] { return workers_[0]->step() == 3; }));
      RunTo(name, v1::JOB_STATE_RUNNING);
      break;
    case Phase::kSealing:
      for (auto& worker : workers_) {
        worker->hold_at_step = 4;
        worker->seals = false;
      }
      ASSERT_TRUE(SyncUntil([&] {
        return workers_[0]->last_reply.seal_checkpoint() == 4 ||
               workers_[1]->last_reply.seal_checkpoint() == 4;
      }));
      break;
    case Phase::kExporting:
      for (auto& worker : workers_) worker->hold_export = true;
      RunTo(name, v1::JOB_STATE_FINALIZING);
      break;
  }
  const v1::Job before = Get(name);
  RestartServer();
  if (::testing::Test::HasFatalFailure()) return;
  for (auto& worker : workers_) {
    worker->hold_at_step = -1;
    worker->hold_export = false;
    worker->seals = true;
  }
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  const v1::Job job = Get(name);
  EXPECT_EQ(job.attempt_epoch(), 1);
  EXPECT_EQ(job.latest_checkpoint().step(), 10);
  EXPECT_EQ(job.create_time().seconds(), before.create_time().seconds());
  // Every event once and in order.
  const auto events = Watch(name, 0, true);
  int64_t last = 0;
  int terminal = 0;
  for (const auto& message : events) {
    if (!message.has_event()) continue;
    EXPECT_GT(message.event().sequence(), last);
    last = message.event().sequence();
    terminal += message.event().data().count("to") > 0 &&
                message.event().data().at("to") == "SUCCEEDED";
  }
  EXPECT_EQ(terminal, 1);
}

INSTANTIATE_TEST_SUITE_P(Phases, RestartTest,
                         ::testing::Values(Phase::kQueued, Phase::kPlaced,
                                           Phase::kReady, Phase::kRunning,
                                           Phase::kSealing, Phase::kExporting));

TEST_F(AttemptTest, ASaveThatCannotBeSealedHoldsNothingUp) {
  AddWorkers(2);
  WarmUp();
  for (auto& worker : workers_) worker->seals_fail = true;
  const std::string name = MustCreate(2, 10);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  EXPECT_FALSE(Get(name).has_latest_checkpoint());
  int failed = 0;
  for (const auto& message : Watch(name, 0, true)) {
    failed += message.event().type() == "CHECKPOINT_FAILED";
  }
  EXPECT_GT(failed, 0);
}

TEST_F(AttemptTest, AfterARestartThereAreNoVerdictsForOneLease) {
  AddWorkers(2);
  WarmUp();
  const std::string name = MustCreate(2, 1000);
  RunTo(name, v1::JOB_STATE_RUNNING);
  RestartServer(/*warm_up=*/false);
  auto away = std::move(workers_[1]);
  for (int second = 0; second < 9; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
    EXPECT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
  }
  const std::string queued = MustCreate(1);
  ASSERT_TRUE(SyncUntil([&] {
    return Get(queued).queue_reason().code() == "COORDINATOR_WARMING_UP";
  }));
  workers_[1] = std::move(away);
  SyncAll();
  clock_.Advance(absl::Seconds(2));
  SyncAll();
  EXPECT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace cadre::coordinator
