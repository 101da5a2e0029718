#include "coordinator/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cadre::coordinator {
namespace {

SchedulerPass Schedule(std::vector<WaitingJob> waiting,
                       std::vector<WorkerSlot> workers, bool warming_up) {
  return coordinator::Schedule({.waiting = std::move(waiting),
                                .workers = std::move(workers),
                                .warming_up = warming_up});
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

WorkerSlot Worker(const std::string& id, const std::string& domain = "d") {
  return {.id = id,
          .backend = "cpu",
          .memory_bytes = 100,
          .link_domain = domain,
          .hostname = domain};
}

WaitingJob Job(const std::string& id, int workers, int64_t sequence,
               int priority = 50) {
  return {.id = id,
          .priority = priority,
          .sequence = sequence,
          .num_workers = workers,
          .backend = "cpu"};
}

std::string CodeOf(const SchedulerPass& pass, const std::string& job) {
  for (const WaitReason& reason : pass.reasons) {
    if (reason.job == job) return reason.code;
  }
  return "";
}

TEST(Schedule, PriorityThenOrderOfTheQueue) {
  const auto pass =
      Schedule({Job("late", 1, 3), Job("early", 1, 2), Job("high", 1, 9, 90)},
               {Worker("w1"), Worker("w2")}, false);
  ASSERT_THAT(pass.placements, SizeIs(2));
  EXPECT_EQ(pass.placements[0].job, "high");
  EXPECT_EQ(pass.placements[1].job, "early");
  EXPECT_EQ(CodeOf(pass, "late"), "WAITING_FOR_WORKERS");
}

TEST(Schedule, AllOrNothing) {
  const auto pass = Schedule({Job("big", 3, 1), Job("small", 1, 2)},
                             {Worker("w1"), Worker("w2"),
                              [] {
                                WorkerSlot busy = Worker("w3");
                                busy.use = WorkerSlot::Use::kBusy;
                                return busy;
                              }()},
                             false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_EQ(pass.placements[0].job, "small");
  ASSERT_EQ(CodeOf(pass, "big"), "WAITING_FOR_WORKERS");
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("needs 3 cpu workers"));
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("2 free"));
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("1 busy"));
}

TEST(Schedule, TheSameInputInAnyOrderGivesTheSamePlacement) {
  std::vector<WorkerSlot> workers = {Worker("a", "x"), Worker("b", "y"),
                                     Worker("c", "x"), Worker("e", "y")};
  std::vector<WaitingJob> jobs = {Job("j1", 2, 1), Job("j2", 2, 2)};
  const auto first = Schedule(jobs, workers, false);
  std::reverse(workers.begin(), workers.end());
  std::reverse(jobs.begin(), jobs.end());
  const auto second = Schedule(jobs, workers, false);
  ASSERT_THAT(first.placements, SizeIs(2));
  ASSERT_THAT(second.placements, SizeIs(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first.placements[i].job, second.placements[i].job);
    EXPECT_EQ(first.placements[i].workers, second.placements[i].workers);
  }
  EXPECT_THAT(first.placements[0].workers, ElementsAre("a", "c"));
}

TEST(Schedule, AGangStaysInTheSmallestDomainThatHoldsIt) {
  const auto pass =
      Schedule({Job("j", 2, 1)},
               {Worker("a1", "a"), Worker("a2", "a"), Worker("a3", "a"),
                Worker("b1", "b"), Worker("b2", "b"), Worker("c1", "c")},
               false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_THAT(pass.placements[0].workers, ElementsAre("b1", "b2"));
}

TEST(Schedule, AWideGangFillsTheFullestDomainsFirst) {
  std::vector<WorkerSlot> workers = {Worker("a1", "a"), Worker("b1", "b"),
                                     Worker("b2", "b"), Worker("c1", "c"),
                                     Worker("c2", "c")};
  WaitingJob job = Job("j", 4, 1);
  auto pass = Schedule({job}, workers, false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_THAT(pass.placements[0].workers, ElementsAre("b1", "b2", "c1", "c2"));
  job.max_link_domains = 1;
  pass = Schedule({job}, workers, false);
  EXPECT_THAT(pass.placements, IsEmpty());
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("largest link domain 2"));
}

TEST(Schedule, EligibleByBackendMemoryAndLabels) {
  WorkerSlot gpu = Worker("g");
  gpu.backend = "cuda";
  WorkerSlot small = Worker("s");
  small.memory_bytes = 5;
  WorkerSlot labelled = Worker("w");
  labelled.labels = {{"pool", "a"}};
  WaitingJob job = Job("j", 1, 1);
  job.min_memory_bytes = 50;
  job.selector = {{"pool", "a"}};
  auto pass = Schedule({job}, {gpu, small, labelled}, false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_THAT(pass.placements[0].workers, ElementsAre("w"));
  job.selector = {{"pool", "b"}};
  pass = Schedule({job}, {gpu, small, labelled}, false);
  EXPECT_EQ(CodeOf(pass, "j"), "NO_ELIGIBLE_WORKERS");
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("only 0 of the 3"));
}

TEST(Schedule, AnImpossibleJobBlocksNobody) {
  const auto pass =
      Schedule({Job("huge", 99, 1, 90), Job("j", 1, 2)}, {Worker("w")}, false);
  EXPECT_THAT(pass.placements, SizeIs(1));
  EXPECT_EQ(CodeOf(pass, "huge"), "NO_ELIGIBLE_WORKERS");
}

TEST(Schedule, ABlockedJobIsPassedForAWhileThenWorkersAreKeptForIt) {
  std::vector<WorkerSlot> workers = {Worker("w1"), Worker("w2")};
  workers[1].use = WorkerSlot::Use::kBusy;
  WaitingJob big = Job("big", 2, 1);
  big.waited = absl::Minutes(29);
  EXPECT_THAT(Schedule({big, Job("s", 1, 2)}, workers, false).placements,
              SizeIs(1));
  big.waited = absl::Minutes(31);
  const auto pass = Schedule({big, Job("s", 1, 2)}, workers, false);
  EXPECT_THAT(pass.placements, IsEmpty());
  EXPECT_EQ(CodeOf(pass, "s"), "HELD_FOR_LARGER_JOB");
}

TEST(Schedule, ARecoveringJobComesFirstAndKeepsItsWorkers) {
  WaitingJob lost = Job("lost", 2, 5, 10);
  lost.recovering = true;
  lost.former_workers = {"w1", "w2"};
  std::vector<WorkerSlot> workers = {Worker("w1"), Worker("w2"), Worker("w3")};
  workers[1].use = WorkerSlot::Use::kUnreachable;
  auto pass = Schedule({Job("high", 1, 1, 99), lost}, workers, false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_EQ(pass.placements[0].job, "lost");
  EXPECT_THAT(pass.placements[0].workers, ElementsAre("w1", "w3"));
  // Without a replacement, its survivor is not given away.
  workers[2].use = WorkerSlot::Use::kBusy;
  pass = Schedule({Job("high", 1, 1, 99), lost}, workers, false);
  EXPECT_THAT(pass.placements, IsEmpty());
  EXPECT_EQ(CodeOf(pass, "lost"), "WAITING_FOR_REPLACEMENT");
  EXPECT_EQ(CodeOf(pass, "high"), "HELD_FOR_LARGER_JOB");
}

TEST(Schedule, ARequeuedJobIsHeadOfItsPriorityClass) {
  WaitingJob again = Job("again", 1, 9);
  again.requeued = true;
  const auto pass = Schedule({Job("first", 1, 1), again}, {Worker("w")}, false);
  EXPECT_EQ(pass.placements[0].job, "again");
}

TEST(Schedule, NothingIsPlacedWhileWarmingUpOrBackingOff) {
  EXPECT_EQ(CodeOf(Schedule({Job("j", 1, 1)}, {Worker("w")}, true), "j"),
            "COORDINATOR_WARMING_UP");
  WaitingJob job = Job("j", 1, 1);
  job.backoff_left = absl::Seconds(3.5);
  const auto pass = Schedule({job}, {Worker("w")}, false);
  EXPECT_EQ(CodeOf(pass, "j"), "RETRY_BACKOFF");
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("4s"));
}

TEST(Schedule, QuotasHoldTheirOwnersJobsOnly) {
  WaitingJob mine = Job("mine", 2, 1), other = Job("other", 1, 2);
  mine.owner = "me";
  other.owner = "you";
  const HoldingJob running{.id = "r", .owner = "me", .workers = {"w9"}};
  SchedulerInput input{.waiting = {mine, other},
                       .holding = {running},
                       .workers = {Worker("w1"), Worker("w2"), Worker("w3")},
                       .quota = {.running_workers = 2}};
  auto pass = coordinator::Schedule(input);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_EQ(pass.placements[0].job, "other");
  EXPECT_EQ(CodeOf(pass, "mine"), "QUOTA_RUNNING_WORKERS");
  input.quota = {.running_jobs = 1};
  pass = coordinator::Schedule(input);
  EXPECT_EQ(CodeOf(pass, "mine"), "QUOTA_RUNNING_JOBS");
  // What is placed in the pass counts too.
  input.quota = {.running_workers = 3};
  WaitingJob second = Job("second", 1, 3);
  second.owner = "me";
  input.waiting.push_back(second);
  pass = coordinator::Schedule(input);
  EXPECT_EQ(CodeOf(pass, "second"), "QUOTA_RUNNING_WORKERS");
}

TEST(Schedule, WaitingRaisesAJobAboveLaterOnesOfHigherPriority) {
  WaitingJob old = Job("old", 1, 1, 10);
  old.waited = absl::Minutes(100);
  auto pass = Schedule({old, Job("new", 1, 2, 20)}, {Worker("w")}, false);
  EXPECT_EQ(pass.placements[0].job, "old");
  old.waited = absl::Minutes(90);
  pass = Schedule({old, Job("new", 1, 2, 20)}, {Worker("w")}, false);
  EXPECT_EQ(pass.placements[0].job, "new");
}

TEST(Schedule, AFullDiskStopsNewWorkAndSaysSo) {
  const auto pass = coordinator::Schedule({.waiting = {Job("j", 1, 1)},
                                           .workers = {Worker("w")},
                                           .disk_full = true});
  EXPECT_THAT(pass.placements, IsEmpty());
  EXPECT_EQ(CodeOf(pass, "j"), "STATE_DISK_FULL");
}

TEST(Schedule, ALongQueueIsLookedAtFromTheFront) {
  std::vector<WaitingJob> jobs;
  for (int i = 0; i < 300; ++i) {
    jobs.push_back(Job("j" + std::to_string(i), 1, i));
  }
  const auto pass = Schedule(jobs, {Worker("w")}, false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_EQ(pass.placements[0].job, "j0");
  EXPECT_THAT(pass.reasons, SizeIs(299));
}

TEST(Schedule, AJobThatMayShrinkGetsTheLargestGangThereIs) {
  WaitingJob job = Job("a", 4, 1);
  job.smaller = {2, 1};
  const std::vector<WorkerSlot> three = {Worker("w1"), Worker("w2"),
                                         Worker("w3")};
  auto pass = Schedule({job}, three, false);
  ASSERT_THAT(pass.placements, SizeIs(1));
  EXPECT_THAT(pass.placements[0].workers, ElementsAre("w1", "w2"));
  pass = Schedule({job}, {}, false);
  ASSERT_THAT(pass.reasons, SizeIs(1));
  EXPECT_THAT(pass.reasons[0].message, HasSubstr("now at least 1"));
  job.smaller.clear();
  EXPECT_THAT(Schedule({job}, three, false).placements, IsEmpty());
}

TEST(Preemption, TakesTheLowestThenTheLatestAndNoMoreThanNeeded) {
  const auto holding = [](const std::string& id, int priority, int start) {
    return HoldingJob{.id = id,
                      .priority = priority,
                      .start = absl::FromUnixSeconds(start),
                      .running = true,
                      .workers = {"w-" + id}};
  };
  const std::vector<std::string> all = {"w-a", "w-b", "w-c", "w-d"};
  const std::vector<HoldingJob> jobs = {
      holding("a", 30, 1), holding("b", 10, 2), holding("c", 10, 3),
      holding("d", 60, 4)};
  EXPECT_THAT(ChooseVictims(70, 1, 0, all, jobs), ElementsAre("c"));
  EXPECT_THAT(ChooseVictims(70, 3, 1, all, jobs), ElementsAre("c", "b"));
  EXPECT_THAT(ChooseVictims(70, 3, 0, all, jobs), ElementsAre("c", "b", "a"));
  // The gap to d is too small, and half a gang is of no use.
  EXPECT_THAT(ChooseVictims(70, 4, 0, all, jobs), IsEmpty());
  EXPECT_THAT(ChooseVictims(29, 1, 0, all, jobs), IsEmpty());
  // One is leaving already.
  auto leaving = jobs;
  leaving[1].running = false;
  leaving[1].leaving = true;
  EXPECT_THAT(ChooseVictims(70, 1, 0, all, leaving), IsEmpty());
  EXPECT_THAT(ChooseVictims(70, 2, 0, all, leaving), ElementsAre("c"));
}

}  // namespace
}  // namespace cadre::coordinator
