// Pause, resume, delete, lists, values and the admin state of workers, over
// gRPC.

#include "base/rpc/error.h"
#include "coordinator/server_fixture.h"
#include "google/rpc/error_details.pb.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using Jobs = v1::JobService::Stub;
using Admin = v1::AdminService::Stub;

class VerbsTest : public ServerFixture {
 protected:
  absl::StatusOr<v1::PauseJobResponse> Pause(const std::string& name,
                                             const std::string& id = "") {
    v1::PauseJobRequest request;
    request.set_name(name);
    request.set_request_id(id);
    return Call(jobs_, &Jobs::PauseJob, request);
  }
  absl::StatusOr<v1::ResumeJobResponse> Resume(const std::string& name) {
    v1::ResumeJobRequest request;
    request.set_name(name);
    request.set_priority(70);
    return Call(jobs_, &Jobs::ResumeJob, request);
  }
  // A job on one worker that stands at a step, its save of step 4 committed.
  std::string RunningJob(int64_t at) {
    AddWorkers(1);
    workers_[0]->hold_at_step = at;
    const std::string name = MustCreate(1);
    EXPECT_TRUE(SyncUntil([&] { return workers_[0]->step() == at; }));
    EXPECT_TRUE(SyncUntilState(name, v1::JOB_STATE_RUNNING));
    EXPECT_TRUE(
        SyncUntil([&] { return Get(name).latest_checkpoint().step() == 4; }));
    return name;
  }
};

TEST_F(VerbsTest, APausedJobGivesItsWorkerBackAndGoesOnFromItsSave) {
  const std::string name = RunningJob(5);
  ASSERT_OK_AND_ASSIGN(const auto paused, Pause(name));
  EXPECT_EQ(paused.job().state(), v1::JOB_STATE_PAUSING);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_PAUSED));
  ASSERT_TRUE(SyncUntil([&] { return workers_[0]->state().has_idle(); }));
  workers_[0]->hold_at_step = -1;
  ASSERT_OK_AND_ASSIGN(const auto resumed, Resume(name));
  EXPECT_EQ(resumed.job().priority(), 70);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  EXPECT_EQ(Get(name).attempts(1).from_step(), 4);
}

TEST_F(VerbsTest, ALatePauseWithAUsedIdDoesNotPauseAgain) {
  const std::string name = MustCreate(1);
  const std::string id = "00000000-0000-4000-8000-aaaaaaaaaaaa";
  ASSERT_OK(Pause(name, id));
  ASSERT_OK(Resume(name));
  ASSERT_OK_AND_ASSIGN(const auto late, Pause(name, id));
  EXPECT_NE(late.job().state(), v1::JOB_STATE_PAUSED);
  const std::string other = MustCreate(1);
  EXPECT_EQ(ErrorReason(Pause(other, id).status()), "REQUEST_ID_REUSED");
}

TEST_F(VerbsTest, OnlyAnEndedJobIsDeletedAndItsNameStaysTaken) {
  auto create = Request(1);
  create.set_job_id("mine");
  ASSERT_OK(Create(create));
  v1::DeleteJobRequest request;
  request.set_name("jobs/mine");
  EXPECT_EQ(ErrorReason(Call(jobs_, &Jobs::DeleteJob, request).status()),
            "JOB_STATE");
  ASSERT_OK(Cancel("jobs/mine"));
  ASSERT_OK(Call(jobs_, &Jobs::DeleteJob, request));
  ASSERT_OK(Call(jobs_, &Jobs::DeleteJob, request));  // a repetition
  v1::GetJobRequest get;
  get.set_name("jobs/mine");
  const absl::Status gone = Call(jobs_, &Jobs::GetJob, get).status();
  EXPECT_EQ(ErrorReason(gone), "JOB_NOT_FOUND");
  EXPECT_EQ(GetDetail<google::rpc::ResourceInfo>(gone)->resource_name(),
            "jobs/mine");
  RestartServer(false);
  auto again = Request(1);
  again.set_job_id("mine");
  EXPECT_EQ(ErrorReason(Create(again).status()), "JOB_ID_TAKEN");
  request.set_name("jobs/never");
  EXPECT_EQ(ErrorReason(Call(jobs_, &Jobs::DeleteJob, request).status()),
            "JOB_NOT_FOUND");
}

TEST_F(VerbsTest, CheckpointsComeInPagesAndResultsInAList) {
  AddWorkers(1);
  const std::string name = MustCreate(1, 12);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  v1::ListCheckpointsRequest request;
  request.set_parent(name);
  request.set_page_size(1);
  ASSERT_OK_AND_ASSIGN(auto page, Call(jobs_, &Jobs::ListCheckpoints, request));
  ASSERT_EQ(page.checkpoints_size(), 1);
  EXPECT_EQ(page.checkpoints(0).step(), 12);
  request.set_page_token(page.next_page_token());
  ASSERT_OK_AND_ASSIGN(page, Call(jobs_, &Jobs::ListCheckpoints, request));
  EXPECT_EQ(page.checkpoints(0).step(), 8);  // keep_last is 2
  EXPECT_EQ(page.next_page_token(), "");
  request.set_page_token("x");
  EXPECT_EQ(ErrorReason(Call(jobs_, &Jobs::ListCheckpoints, request).status()),
            "PAGE_TOKEN_INVALID");
  v1::ListArtifactsRequest artifacts;
  artifacts.set_parent(name);
  ASSERT_OK_AND_ASSIGN(const auto list,
                       Call(jobs_, &Jobs::ListArtifacts, artifacts));
  EXPECT_EQ(list.artifacts(0).name(), name + "/artifacts/adapter");
  v1::GetPlanRequest plan;
  plan.set_name(name);
  EXPECT_EQ(Call(jobs_, &Jobs::GetPlan, plan)->plan().total_steps(), 12);
}

TEST_F(VerbsTest, ValuesOverStepsOutliveARestartAndCostNoCommit) {
  AddWorkers(1);
  const std::string name = MustCreate(1, 10);
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  RestartServer(false);
  v1::GetMetricsRequest request;
  request.set_name(name);
  request.add_series("loss");
  request.set_start_step(3);
  ASSERT_OK_AND_ASSIGN(auto metrics, Call(jobs_, &Jobs::GetMetrics, request));
  ASSERT_EQ(metrics.series_size(), 1);
  EXPECT_EQ(metrics.series(0).points_size(), 8);
  EXPECT_EQ(metrics.series(0).points(0).value(), 1.0 / 3);
  request.set_max_points(3);
  ASSERT_OK_AND_ASSIGN(metrics, Call(jobs_, &Jobs::GetMetrics, request));
  EXPECT_TRUE(metrics.downsampled());
  EXPECT_EQ(metrics.series(0).points(2).step(), 10);
  v1::GetExpertLoadsRequest loads;
  loads.set_job(name);
  loads.set_window(v1::GetExpertLoadsRequest::WINDOW_CUMULATIVE);
  ASSERT_OK_AND_ASSIGN(const auto matrix,
                       Call(admin_, &Admin::GetExpertLoads, loads));
  EXPECT_THAT(matrix.layers(0).tokens(), ElementsAre(30, 10));
  EXPECT_NEAR(matrix.layers(0).balancedness(), 2.0 / 3, 1e-9);
  EXPECT_EQ(matrix.layers(0).dropped(), 10);
  EXPECT_EQ(matrix.layers(0).remapped(), 20);
  EXPECT_EQ(matrix.layers(0).padding_rows(), 120);
  loads.set_job(MustCreate(2));
  EXPECT_EQ(ErrorReason(Call(admin_, &Admin::GetExpertLoads, loads).status()),
            "NO_EXPERTS");
}

TEST_F(VerbsTest, ACordonedWorkerGetsNothingNewAlsoAfterARestart) {
  AddWorkers(1);
  SyncAll();
  v1::CordonRequest cordon;
  cordon.set_name("workers/host.0");
  cordon.set_reason("fan");
  ASSERT_OK_AND_ASSIGN(const auto cordoned,
                       Call(admin_, &Admin::Cordon, cordon));
  EXPECT_EQ(cordoned.worker().reason(), "fan");
  RestartServer(false);
  const std::string name = MustCreate(1);
  ASSERT_TRUE(SyncUntil([&] {
    return Get(name).queue_reason().message().find("1 cordoned") !=
           std::string::npos;
  }));
  v1::ListWorkersRequest list;
  list.set_filter("admin_state = CORDONED AND backend = cpu");
  EXPECT_EQ(Call(admin_, &Admin::ListWorkers, list)->workers_size(), 1);
  list.set_filter("admin_state = SCHEDULABLE");
  EXPECT_EQ(Call(admin_, &Admin::ListWorkers, list)->workers_size(), 0);
  v1::UncordonRequest uncordon;
  uncordon.set_name("workers/host.0");
  ASSERT_OK(Call(admin_, &Admin::Uncordon, uncordon));
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  cordon.set_name("workers/none");
  const absl::Status none = Call(admin_, &Admin::Cordon, cordon).status();
  EXPECT_EQ(ErrorReason(none), "WORKER_NOT_FOUND");
  EXPECT_EQ(GetDetail<google::rpc::ResourceInfo>(none)->resource_name(),
            "workers/none");
}

TEST_F(VerbsTest, ADrainedWorkersJobMovesToAnother) {
  const std::string name = RunningJob(5);
  AddWorkers(1);
  SyncAll();
  v1::DrainRequest drain;
  drain.set_name("workers/host.0");
  ASSERT_OK(Call(admin_, &Admin::Drain, drain));
  workers_[0]->hold_at_step = -1;
  ASSERT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  const v1::Job job = Get(name);
  EXPECT_THAT(job.attempts(1).workers(), ElementsAre("host.1"));
  EXPECT_EQ(job.attempts(1).from_step(), 4);
  EXPECT_EQ(job.attempts(0).cause(), v1::FAILURE_CAUSE_DRAINED);
  EXPECT_FALSE(job.has_failure());
}

TEST_F(VerbsTest, ADrainAtCheckpointWaitsForTheNextSaveOrTheDeadline) {
  const std::string name = RunningJob(5);
  AddWorkers(1);
  v1::DrainRequest drain;
  drain.set_name("workers/host.0");
  drain.set_mode(v1::DrainRequest::MODE_AT_CHECKPOINT);
  drain.mutable_deadline()->set_seconds(30);
  clock_.Advance(absl::Seconds(1));  // the last save is older than the drain
  ASSERT_OK(Call(admin_, &Admin::Drain, drain));
  for (int i = 0; i < 5; ++i) SyncAll();
  EXPECT_EQ(Get(name).state(), v1::JOB_STATE_RUNNING);
  for (int i = 0; i < 6; ++i) {
    clock_.Advance(absl::Seconds(5));
    SyncAll();
  }
  ASSERT_TRUE(SyncUntil([&] { return Get(name).attempts_size() == 2; }));
  EXPECT_THAT(Get(name).attempts(1).workers(), ElementsAre("host.1"));
}

}  // namespace
}  // namespace cadre::coordinator
