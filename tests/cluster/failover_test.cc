// Two coordinators and a real etcd: one is active, and when it goes the other
// takes over while jobs run on.
#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using cadre::v1::Job;

constexpr absl::Duration kTakeover = absl::Seconds(10);
constexpr int kExitLostLease = 75;

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<Cluster>(NewTestFolder());
    ASSERT_OK(cluster_->StartEtcd());
    ASSERT_OK(cluster_->StartCoordinator(0));
    ASSERT_OK(cluster_->StartCoordinator(1, /*wait=*/false));
    ASSERT_OK(cluster_->StartWorker(0));
    ASSERT_OK(cluster_->StartWorker(1));
  }

  // Slowly until Watch() has called on_save.
  void Submit(int steps) {
    ASSERT_OK(cluster_->SlowDown());
    ASSERT_OK_AND_ASSIGN(const auto spec, cluster_->MakeJob(2, steps));
    cadre::v1::CreateJobRequest request;
    request.set_job_id("tiny");
    *request.mutable_spec() = spec;
    ASSERT_OK(cluster_->client().Create(request).status());
  }

  // To the end of the job; `on_save` hears of its first checkpoint.
  Job Watch(const std::function<void()>& on_save) {
    bool saved = false;
    EXPECT_OK(cluster_->client().Watch(
        {.job = "tiny", .on_item = [&](const auto& item) {
           if (!item.has_event()) return;
           seen_.push_back(item.event().sequence());
           if (saved || item.event().type() != "CHECKPOINT_COMMITTED") return;
           saved = true;
           on_save();
           cluster_->SpeedUp();
         }}));
    EXPECT_TRUE(saved);
    const auto job = cluster_->client().Get("tiny", cadre::v1::JOB_VIEW_FULL);
    EXPECT_OK(job);
    return job.ok() ? *job : Job();
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<int64_t> seen_;
};

TEST_F(FailoverTest, TheOtherServesWithinTenSecondsAndTheJobRunsOn) {
  Submit(60);
  const Job job = Watch([&] {
    cluster_->coordinator(0).Kill();
    const absl::Time killed = absl::Now();
    ASSERT_OK(cluster_->WaitUntilServing(1));
    EXPECT_LT(absl::Now() - killed, kTakeover);
    // The former one comes back and waits.
    ASSERT_OK(cluster_->StartCoordinator(0, /*wait=*/false));
  });
  EXPECT_EQ(job.state(), cadre::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.attempts_size(), 1) << "its workers never stopped";
  EXPECT_EQ(job.progress().step(), 60);
  for (size_t i = 1; i < seen_.size(); ++i) {
    EXPECT_EQ(seen_[i], seen_[i - 1] + 1);
  }
}

TEST_F(FailoverTest, AnOrderlyEndHandsOverAtOnce) {
  Submit(60);
  const Job job = Watch([&] {
    const absl::Time asked = absl::Now();
    cluster_->coordinator(0).Signal(SIGTERM);
    EXPECT_EQ(cluster_->coordinator(0).Wait(), 0);
    ASSERT_OK(cluster_->WaitUntilServing(1));
    EXPECT_LT(absl::Now() - asked, kTakeover);
  });
  EXPECT_EQ(job.state(), cadre::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.attempts_size(), 1);
}

// One that was cut off by a stop may believe that it is active when it goes on;
// it writes nothing more and ends.
TEST_F(FailoverTest, AStoppedLeaderLeavesOnceItWakes) {
  Submit(60);
  const Job job = Watch([&] {
    cluster_->coordinator(0).Signal(SIGSTOP);
    // Long enough for its lease to end; nothing tells when that is.
    absl::SleepFor(absl::Seconds(6));
    cluster_->coordinator(0).Signal(SIGCONT);
    EXPECT_THAT(cluster_->coordinator(0).Wait(),
                ::testing::AnyOf(kExitLostLease, 128 + SIGABRT));
    ASSERT_OK(cluster_->WaitUntilServing(1));
  });
  EXPECT_EQ(job.state(), cadre::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.attempts_size(), 1);
}

}  // namespace
}  // namespace cadre::testing
