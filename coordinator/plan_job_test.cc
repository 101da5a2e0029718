// What PlanJob answers, over gRPC.

#include "base/rpc/error.h"
#include "coordinator/server_fixture.h"

namespace cadre::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Jobs = v1::JobService::Stub;

class PlanJobTest : public ServerFixture {
 protected:
  v1::PlanJobRequest PlanRequest(int workers) {
    v1::PlanJobRequest request;
    request.set_base_dir(dir_);
    request.set_job_yaml(ServerFixture::Request(workers).job_yaml());
    request.set_max_candidates(8);
    return request;
  }
  absl::StatusOr<v1::PlanJobResponse> Plan(const v1::PlanJobRequest& request) {
    return Call(jobs_, &Jobs::PlanJob, request);
  }
};

TEST_F(PlanJobTest, SaysWhoWouldGetTheJobAndLeavesNothingBehind) {
  AddWorkers(3);
  for (const auto& worker : workers_) {
    worker->mutable_state().mutable_device()->set_memory_bytes(1'000'000'000);
  }
  SyncAll();
  ASSERT_OK_AND_ASSIGN(const auto answer, Plan(PlanRequest(2)));
  EXPECT_TRUE(answer.fits());
  EXPECT_EQ(answer.plan().world_size(), 2);
  EXPECT_EQ(answer.plan().worker_memory_bytes(), 1'000'000'000);
  EXPECT_EQ(answer.eligible_workers(), 3);
  EXPECT_EQ(answer.free_workers(), 3);
  EXPECT_THAT(answer.workers(),
              ElementsAre("workers/host.0", "workers/host.1"));
  ASSERT_GE(answer.candidates_size(), 1);
  EXPECT_TRUE(answer.candidates(0).fits());
  EXPECT_EQ(answer.candidates(0).fsdp_shard_group_size(),
            answer.plan().fsdp_shard_group_size());
  ASSERT_OK_AND_ASSIGN(const auto jobs,
                       Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()));
  EXPECT_THAT(jobs.jobs(), IsEmpty());
}

TEST_F(PlanJobTest, SaysWhyAJobWouldWait) {
  AddWorkers(2);
  SyncAll();
  ASSERT_OK_AND_ASSIGN(auto answer, Plan(PlanRequest(3)));
  EXPECT_FALSE(answer.fits());
  EXPECT_EQ(answer.limiting_term(), "workers");
  EXPECT_EQ(answer.queue_reason().code(), "NO_ELIGIBLE_WORKERS");
  workers_[0]->hold_at_step = 2;
  const std::string running = MustCreate(1);
  ASSERT_TRUE(SyncUntilState(running, v1::JOB_STATE_RUNNING));
  ASSERT_OK_AND_ASSIGN(answer, Plan(PlanRequest(2)));
  EXPECT_TRUE(answer.fits());
  EXPECT_EQ(answer.free_workers(), 1);
  EXPECT_THAT(answer.workers(), IsEmpty());
  EXPECT_EQ(answer.queue_reason().code(), "WAITING_FOR_WORKERS");
}

TEST_F(PlanJobTest, TooLittleMemoryIsAnAnswer) {
  AddWorkers(1);
  workers_[0]->mutable_state().mutable_device()->set_memory_bytes(1'000'000);
  SyncAll();
  ASSERT_OK_AND_ASSIGN(const auto answer, Plan(PlanRequest(1)));
  EXPECT_FALSE(answer.fits());
  EXPECT_NE(answer.limiting_term(), "");
  EXPECT_NE(answer.limiting_term(), "workers");
  ASSERT_GE(answer.candidates_size(), 1);
  EXPECT_FALSE(answer.candidates(0).fits());
  EXPECT_GT(answer.candidates(0).memory_bytes(), 1'000'000);
}

TEST_F(PlanJobTest, WorkersNeedNotExist) {
  auto request = PlanRequest(1);
  request.mutable_hypothetical()->set_workers(4);
  request.mutable_hypothetical()->set_device_memory_bytes(2'000'000'000);
  ASSERT_OK_AND_ASSIGN(auto answer, Plan(request));
  EXPECT_TRUE(answer.fits());
  EXPECT_EQ(answer.plan().world_size(), 4);
  EXPECT_GT(answer.candidates_size(), 1);
  // 12 rows do not divide over 5 workers.
  request.mutable_hypothetical()->set_workers(5);
  ASSERT_OK_AND_ASSIGN(answer, Plan(request));
  EXPECT_FALSE(answer.fits());
  EXPECT_EQ(answer.limiting_term(), "workers");
  request.mutable_hypothetical()->set_workers(0);
  EXPECT_EQ(ErrorReason(Plan(request).status()), "JOB_FILE_INVALID");
}

TEST_F(PlanJobTest, AWrongFileIsAnErrorWithItsLine) {
  v1::PlanJobRequest request;
  EXPECT_EQ(ErrorReason(Plan(request).status()), "JOB_FILE_INVALID");
  request = PlanRequest(1);
  request.set_job_yaml(request.job_yaml() + "nonsense: 1\n");
  const absl::Status status = Plan(request).status();
  EXPECT_EQ(ErrorReason(status), "JOB_FILE_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("line"));
  request = PlanRequest(1);
  request.set_sample_dataset(true);
  data_.head.status = absl::InvalidArgumentError("bad");
  EXPECT_EQ(ErrorReason(Plan(request).status()), "DATASET_INVALID");
}

}  // namespace
}  // namespace cadre::coordinator
