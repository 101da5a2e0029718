// A member of an expert-parallel job that is killed or stopped in mid-step: the
// collectives of its peers end, the error names it, and the job recovers.
#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using cadre::v1::Event;
using cadre::v1::Job;
using cadre::v1::JobSpec;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSteps = 40;

class SilentPeerTest : public ::testing::Test {
 protected:
  // `workers` of one expert-parallel group; the dense part over two.
  void Start(int workers, const std::string& coordinator_timeouts,
             const std::string& worker_timeouts) {
    cluster_ = std::make_unique<Cluster>(NewTestFolder());
    cluster_->SetTimeouts(coordinator_timeouts, worker_timeouts);
    ASSERT_OK(cluster_->StartCoordinator());
    for (int i = 0; i < workers; ++i) ASSERT_OK(cluster_->StartWorker(i));
    ASSERT_OK_AND_ASSIGN(JobSpec spec, cluster_->MakeJob(workers, kSteps));
    spec.mutable_parallelism()->set_fsdp_shard_group_size(2);
    spec.mutable_parallelism()->set_expert_parallel_size(workers);
    ASSERT_OK(cluster_->SlowDown());
    cadre::v1::CreateJobRequest request;
    request.set_job_id("tiny");
    *request.mutable_spec() = spec;
    ASSERT_OK(cluster_->client().Create(request).status());
  }

  // To the end of the job. After the first checkpoint `disturb`, and once the
  // attempt is over `restore`.
  Job Run(const std::function<void()>& disturb,
          const std::function<void()>& restore) {
    bool disturbed = false, restored = false;
    EXPECT_OK(cluster_->client().Watch(
        {.job = "tiny", .on_item = [&](const auto& item) {
           if (!item.has_event()) return;
           const std::string& type = item.event().type();
           if (!disturbed && type == "CHECKPOINT_COMMITTED") {
             disturbed = true;
             disturb();
             cluster_->SpeedUp();
           } else if (disturbed && !restored && type == "ATTEMPT_ENDED") {
             restored = true;
             restore();
           }
         }}));
    EXPECT_TRUE(disturbed && restored);
    const auto job = cluster_->client().Get("tiny", cadre::v1::JOB_VIEW_FULL);
    EXPECT_OK(job);
    return job.ok() ? *job : Job();
  }

  // The first attempt ended because of worker `number`; the second did the rest
  // from the checkpoint.
  void ExpectRecoveredFrom(const Job& job, int number) {
    ASSERT_EQ(job.state(), cadre::v1::JOB_STATE_SUCCEEDED)
        << job.failure().ShortDebugString();
    ASSERT_EQ(job.attempts_size(), 2);
    const cadre::v1::Attempt& first = job.attempts(0);
    const std::string id = absl::StrCat("test.", number);
    int rank = 0;
    while (rank < first.workers_size() && first.workers(rank) != id) ++rank;
    ASSERT_LT(rank, first.workers_size());
    EXPECT_THAT(first.detail(),
                HasSubstr(absl::StrCat("rank ", rank, " (worker ", id, ")")));
    EXPECT_GE(job.attempts(1).from_step(), 5);
    EXPECT_EQ(job.attempts(1).workers_size(), first.workers_size());
    EXPECT_EQ(job.progress().step(), kSteps);
  }

  std::unique_ptr<Cluster> cluster_;
};

// Against docs/timeouts.md the coordinator is patient here: what ends the step
// is the deadline of the exchange alone.
TEST_F(SilentPeerTest, AStoppedRankEndsTheStepByTheDeadlineOfItsPeers) {
  ASSERT_NO_FATAL_FAILURE(Start(2,
                                "sync_interval: \"100ms\" lease_ttl: \"50s\"",
                                "sync_interval: \"100ms\" sync_deadline: "
                                "\"800ms\" abort_grace: \"1s\" lease_ttl: "
                                "\"2500ms\" collective_timeout: \"4s\""));
  const Job job = Run([&] { cluster_->worker(1).Signal(SIGSTOP); },
                      [&] { cluster_->worker(1).Signal(SIGCONT); });
  ExpectRecoveredFrom(job, 1);
  EXPECT_EQ(job.attempts(0).cause(), cadre::v1::FAILURE_CAUSE_COMMUNICATION);
  EXPECT_THAT(job.attempts(0).detail(), HasSubstr("was silent for 4s"));
}

constexpr char kShort[] =
    "sync_interval: \"100ms\" sync_deadline: \"1s\" abort_grace: \"1500ms\" "
    "lease_ttl: \"3s\" collective_timeout: \"60s\"";

// In the order of docs/timeouts.md the coordinator's verdict comes first.
TEST_F(SilentPeerTest, AStoppedRankIsLostBeforeTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(Start(4, kShort, kShort));
  const Job job = Run([&] { cluster_->worker(3).Signal(SIGSTOP); },
                      [&] { cluster_->worker(3).Signal(SIGCONT); });
  ExpectRecoveredFrom(job, 3);
  EXPECT_EQ(job.attempts(0).cause(), cadre::v1::FAILURE_CAUSE_WORKER_LOST);
}

TEST_F(SilentPeerTest, AKilledRankIsNamedByItsPeers) {
  ASSERT_NO_FATAL_FAILURE(Start(4, kShort, kShort));
  const Job job = Run([&] { cluster_->worker(3).Kill(); },
                      [&] { ASSERT_OK(cluster_->StartWorker(3)); });
  ExpectRecoveredFrom(job, 3);
  EXPECT_THAT(job.attempts(0).cause(),
              AnyOf(cadre::v1::FAILURE_CAUSE_COMMUNICATION,
                    cadre::v1::FAILURE_CAUSE_WORKER_LOST));
}

}  // namespace
}  // namespace cadre::testing
