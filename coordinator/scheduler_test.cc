#include "coordinator/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cadre::coordinator {
namespace {

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

}  // namespace
}  // namespace cadre::coordinator
