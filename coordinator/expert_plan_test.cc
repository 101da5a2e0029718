// Decisions on where experts lie: the pure rules, then over gRPC with scripted
// workers.

#include "coordinator/expert_plan.h"

#include "base/rpc/error.h"
#include "coordinator/server_fixture.h"
#include "coordinator/uneven_loads.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Jobs = v1::JobService::Stub;
using Admin = v1::AdminService::Stub;

v1::Job RunningJob(int64_t attempt = 1) {
  v1::Job job;
  job.set_name("jobs/j");
  job.set_attempt_epoch(attempt);
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_plan()->set_expert_parallel_size(2);
  auto* moe = job.mutable_config_snapshot()->mutable_moe();
  moe->set_placement("eplb");
  moe->set_rebalance("auto");
  moe->set_rebalance_min_gain(0.03);
  return job;
}

v1::ExpertsPlaced Placed(int64_t epoch) {
  v1::ExpertsPlaced placed;
  placed.set_plan_epoch(epoch);
  placed.set_seconds(0.5);
  placed.set_max_rank_bytes(64 << 20);
  return placed;
}

TEST(ExpertPlan, ThreeSkewedWindowsOrderAPlacementWhichThenIsInForce) {
  const v1::Job job = RunningJob();
  ExpertPlacementState state;
  ASSERT_OK_AND_ASSIGN(ReplacementDecision d,
                       TakeLoads(job, UnevenLoads(1, 10), &state));
  EXPECT_FALSE(d.adopt);
  // Nothing has moved: in order, the spare slots empty.
  EXPECT_EQ(state.placement().layers(0).slot_to_expert(3), 3);
  EXPECT_EQ(state.placement().layers(0).slot_to_expert(4), -1);
  ASSERT_OK_AND_ASSIGN(d, TakeLoads(job, UnevenLoads(11, 20), &state));
  EXPECT_FALSE(d.adopt);
  ASSERT_OK_AND_ASSIGN(d, TakeLoads(job, UnevenLoads(21, 30), &state));
  ASSERT_TRUE(d.adopt) << d.reason;
  EXPECT_GT(d.balancedness_new, 0.95);
  const v1::ExpertPlacement* const ordered = OrderedPlacement(state, job);
  ASSERT_NE(ordered, nullptr);
  EXPECT_EQ(ordered->plan_epoch(), 1);
  EXPECT_EQ(ordered->attempt_epoch(), 1);
  // One at a time.
  ASSERT_OK_AND_ASSIGN(d, TakeLoads(job, UnevenLoads(31, 40), &state));
  EXPECT_FALSE(d.adopt);
  EXPECT_THAT(state.decision(), HasSubstr("still on its way"));
  EXPECT_EQ(ErrorReason(OrderReplacement(job, &state).status()),
            "REBALANCE_PENDING");
  EXPECT_FALSE(TakePlaced(job, Placed(2), &state));
  EXPECT_TRUE(TakePlaced(job, Placed(1), &state));
  EXPECT_EQ(state.placement().plan_epoch(), 1);
  EXPECT_EQ(state.replacements(), 1);
  EXPECT_EQ(state.bytes_per_second(), (64 << 20) / 0.5);
  EXPECT_EQ(OrderedPlacement(state, job), nullptr);
  EXPECT_FALSE(TakePlaced(job, Placed(1), &state));  // said twice
  // As good as it gets: nothing moves by order either.
  ASSERT_OK_AND_ASSIGN(d, OrderReplacement(job, &state));
  EXPECT_FALSE(d.adopt) << d.reason;
}

TEST(ExpertPlan, AnOrderEndsWithItsAttemptAndItsNumberIsNotUsedAgain) {
  ExpertPlacementState state;
  ASSERT_OK(TakeLoads(RunningJob(), UnevenLoads(1, 10), &state).status());
  ASSERT_OK_AND_ASSIGN(ReplacementDecision d,
                       OrderReplacement(RunningJob(), &state));
  ASSERT_TRUE(d.adopt);
  const v1::Job next = RunningJob(2);
  EXPECT_EQ(OrderedPlacement(state, next), nullptr);
  EXPECT_FALSE(TakePlaced(next, Placed(1), &state));
  EXPECT_EQ(state.placement().plan_epoch(), 0);
  ASSERT_OK_AND_ASSIGN(d, OrderReplacement(next, &state));
  EXPECT_EQ(OrderedPlacement(state, next)->plan_epoch(), 2);
}

TEST(ExpertPlan, WindowsCountOnceAndOffMeansOnlyByOrder) {
  v1::Job job = RunningJob();
  job.mutable_config_snapshot()->mutable_moe()->set_rebalance("off");
  ExpertPlacementState state;
  EXPECT_EQ(ErrorReason(OrderReplacement(job, &state).status()), "NO_LOADS");
  for (int64_t i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const ReplacementDecision d,
        TakeLoads(job, UnevenLoads(10 * i + 1, 10 * i + 10), &state));
    EXPECT_FALSE(d.adopt);
  }
  EXPECT_THAT(TakeLoads(job, UnevenLoads(31, 40), &state),
              StatusIs(absl::StatusCode::kUnavailable));
  // The next attempt does steps again.
  job.set_attempt_epoch(2);
  EXPECT_OK(TakeLoads(job, UnevenLoads(31, 40), &state).status());
  EXPECT_TRUE(OrderReplacement(job, &state)->adopt);
  job.mutable_config_snapshot()->mutable_moe()->set_placement("contiguous");
  EXPECT_EQ(ErrorReason(OrderReplacement(job, &state).status()), "NO_EXPERTS");
  job.mutable_plan()->set_expert_parallel_size(1);
  EXPECT_EQ(ErrorReason(OrderReplacement(job, &state).status()), "NO_EXPERTS");
}

TEST(ExpertPlan, ACheckpointsPlacementIsTakenOver) {
  const v1::Job job = RunningJob();
  ExpertPlacementState first, state;
  ASSERT_OK(TakeLoads(job, UnevenLoads(1, 10), &first).status());
  ASSERT_TRUE(OrderReplacement(job, &first)->adopt);
  v1::ExpertsPlaced placed = Placed(7);
  *placed.mutable_placement() = first.next();
  placed.mutable_placement()->set_plan_epoch(7);
  ASSERT_TRUE(TakePlaced(job, placed, &state));
  EXPECT_EQ(state.placement().plan_epoch(), 7);
  ASSERT_OK(TakeLoads(job, UnevenLoads(1, 10), &state).status());
  EXPECT_EQ(state.placement().plan_epoch(), 7);
  // The copies that it has already are good.
  EXPECT_FALSE(OrderReplacement(job, &state)->adopt);
}

class ExpertsTest : public ServerFixture {
 protected:
  std::string Start(const std::string& moe = "") {
    AddWorkers(2);
    for (const auto& worker : workers_) {
      worker->expert_loads = [](int64_t step) {
        return UnevenLoads(step, step);
      };
      worker->hold_at_step = 8;
    }
    v1::CreateJobRequest request = Request(2, 40);
    request.set_job_yaml(
        absl::StrCat(request.job_yaml(),
                     "parallelism:\n  expert_parallel_size: 2\nmoe:\n"
                     "  spare_slots_per_rank: 1\n  rebalance_every: 1\n",
                     moe));
    auto response = Create(request);
    EXPECT_OK(response);
    if (!response.ok()) return "";
    EXPECT_TRUE(SyncUntil([&] { return workers_[0]->step() == 8; }));
    return response->job().name();
  }
  bool AllPrepared(int64_t epoch) {
    for (const auto& worker : workers_) {
      if (worker->state().running().prepared_plan_epoch() != epoch) {
        return false;
      }
    }
    return true;
  }
  v1::GetExpertLoadsResponse Loads(const std::string& name) {
    v1::GetExpertLoadsRequest request;
    request.set_job(name);
    auto response = Call(admin_, &Admin::GetExpertLoads, request);
    EXPECT_OK(response);
    return response.ok() ? *response : v1::GetExpertLoadsResponse();
  }
  absl::StatusOr<v1::RebalanceExpertsResponse> Rebalance(
      const std::string& name) {
    v1::RebalanceExpertsRequest request;
    request.set_name(name);
    return Call(jobs_, &Jobs::RebalanceExperts, request);
  }
  static std::string Rebalances(const char* result) {
    return absl::StrCat("cadre_moe_rebalances_total{result=\"", result, "\"}");
  }
  std::vector<std::string> Events(const std::string& name) {
    std::vector<std::string> types;
    for (const auto& item : Watch(name, 0, /*history_only=*/true)) {
      types.push_back(item.event().type());
    }
    return types;
  }
};

TEST_F(ExpertsTest, APlacementReachesAllRanksIsJournaledAndStartsTheNextTry) {
  const std::string name = Start();
  ASSERT_TRUE(SyncUntil([&] { return AllPrepared(1); }, "placement 1"));
  EXPECT_THAT(Events(name), Contains("EXPERT_REPLACEMENT_PLANNED"));
  v1::GetExpertLoadsResponse loads = Loads(name);
  EXPECT_EQ(loads.plan_epoch(), 0);
  EXPECT_EQ(loads.next_plan_epoch(), 1);
  EXPECT_EQ(loads.slots_per_rank(), 5);
  EXPECT_NEAR(loads.rank_balancedness(), 80.5 / 150, 1e-9);
  // It outlives a restart, and so does the order.
  RestartServer();
  EXPECT_EQ(Loads(name).next_plan_epoch(), 1);
  for (const auto& worker : workers_) worker->MoveExperts();
  ASSERT_TRUE(SyncUntil([&] { return Loads(name).plan_epoch() == 1; }));
  EXPECT_THAT(Events(name), Contains("EXPERTS_REBALANCED"));
  loads = Loads(name);
  EXPECT_EQ(loads.next_plan_epoch(), 0);
  EXPECT_EQ(loads.replacements(), 1);
  EXPECT_THAT(metrics_.Text(), HasSubstr(Rebalances("applied") + " 1\n"));
  EXPECT_EQ(loads.layers(0).slot_to_expert_size(), 10);
  // The next attempt begins there.
  workers_[1] = std::make_unique<FakeWorker>("host.1", "second-1");
  ASSERT_TRUE(SyncUntil(
      [&] { return workers_[1]->assignment().attempt_epoch() == 2; }));
  EXPECT_EQ(workers_[1]->assignment().placement().plan_epoch(), 1);
  EXPECT_EQ(workers_[1]->assignment().placement().attempt_epoch(), 2);
}

TEST_F(ExpertsTest, AnOrderMovesExpertsWhereTheRuleDoesNot) {
  const std::string name = Start("  rebalance: off\n");
  ASSERT_TRUE(SyncUntil([&] { return !Loads(name).decision().empty(); }));
  EXPECT_EQ(Loads(name).next_plan_epoch(), 0);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(Rebalances("skipped") + " 0\n")));
  ASSERT_OK_AND_ASSIGN(const auto ordered, Rebalance(name));
  EXPECT_TRUE(ordered.ordered());
  EXPECT_GT(ordered.balancedness_new(), ordered.balancedness_now());
  EXPECT_EQ(ErrorReason(Rebalance(name).status()), "REBALANCE_PENDING");
  ASSERT_TRUE(SyncUntil([&] { return AllPrepared(1); }, "placement 1"));
  // What is lost with an attempt is not in force.
  workers_[1] = std::make_unique<FakeWorker>("host.1", "second-1");
  ASSERT_TRUE(SyncUntil(
      [&] { return workers_[1]->assignment().attempt_epoch() == 2; }));
  EXPECT_EQ(workers_[1]->assignment().placement().plan_epoch(), 0);
  EXPECT_EQ(Loads(name).next_plan_epoch(), 0);
  ASSERT_OK(Cancel(name).status());
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_CANCELLED));
  EXPECT_EQ(ErrorReason(Rebalance(name).status()), "JOB_STATE");
  EXPECT_THAT(Rebalance("jobs/none"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace cadre::coordinator
