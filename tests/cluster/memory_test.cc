// What the memory of jobs over real processes is against their plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

using cadre::v1::Job;
using cadre::v1::MemoryPeak;
using ::testing::HasSubstr;

struct Layout {
  const char* name;
  int workers, fsdp, expert_parallel;
};

class MemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<Cluster>(NewTestFolder());
    ASSERT_OK(cluster_->StartCoordinator());
    for (int i = 0; i < 4; ++i) ASSERT_OK(cluster_->StartWorker(i));
  }

  void Train(const Layout& layout, bool full, Job* out) {
    ASSERT_OK_AND_ASSIGN(cadre::v1::JobSpec spec,
                         cluster_->MakeJob(layout.workers, /*steps=*/4));
    spec.mutable_data()->set_max_seq_len(512);
    if (full) {
      spec.clear_tuning();
      spec.mutable_tuning()->set_method("full");
      spec.mutable_training()->set_learning_rate(1e-4);
    }
    auto* parallelism = spec.mutable_parallelism();
    parallelism->set_fsdp_shard_group_size(layout.fsdp);
    parallelism->set_expert_parallel_size(layout.expert_parallel);
    spec.mutable_training()->set_global_batch_size(4);
    cadre::v1::CreateJobRequest request;
    request.set_job_id(absl::StrCat(layout.name, full ? "-full" : "-lora"));
    *request.mutable_spec() = spec;
    ASSERT_OK(cluster_->client().Create(request).status());
    told_.clear();
    ASSERT_OK(cluster_->client().Watch(
        {.job = request.job_id(), .on_item = [&](const auto& item) {
           if (item.has_event() && item.event().type() == "MEMORY_PEAK") {
             told_ = item.event().message();
           }
         }}));
    ASSERT_OK_AND_ASSIGN(*out, cluster_->client().Get(
                                   request.job_id(), cadre::v1::JOB_VIEW_FULL));
    ASSERT_EQ(out->state(), cadre::v1::JOB_STATE_SUCCEEDED)
        << out->failure().ShortDebugString();
  }

  std::unique_ptr<Cluster> cluster_;
  std::string told_;
};

void ExpectNear(const char* what, int64_t measured, int64_t planned) {
  EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(planned),
              0.05 * static_cast<double>(planned))
      << what;
}

int64_t Planned(const Job& job, const std::string& term) {
  for (const auto& planned : job.plan().memory()) {
    if (planned.name() == term) return planned.bytes();
  }
  return 0;
}

// Every rank's peak is that of the plan, for the rows that routers sent to it;
// what routers have no part in is, kind by kind, that of the plan itself.
TEST_F(MemoryTest, PeaksAreThosePlanned) {
  for (const Layout& layout :
       {Layout{"one", 1, 1, 1}, Layout{"two", 2, 2, 2}, Layout{"four", 4, 2, 2},
        Layout{"ep", 4, 1, 4}, Layout{"fsdp", 4, 4, 1}}) {
    for (const bool full : {false, true}) {
      SCOPED_TRACE(absl::StrCat(layout.name, full ? ", full" : ", lora"));
      Job job;
      ASSERT_NO_FATAL_FAILURE(Train(layout, full, &job));
      ASSERT_EQ(job.attempts_size(), 1);
      const auto& peaks = job.attempts(0).memory_peaks();
      ASSERT_EQ(peaks.size(), layout.workers);
      EXPECT_THAT(told_, HasSubstr("peak "));
      EXPECT_THAT(told_, HasSubstr(" of planned "));
      for (int rank = 0; rank < layout.workers; ++rank) {
        const MemoryPeak& peak = peaks[rank];
        SCOPED_TRACE(peak.ShortDebugString());
        EXPECT_EQ(peak.rank(), rank);
        ASSERT_GT(peak.expected_bytes(), 0);
        ExpectNear("peak", peak.peak_bytes(), peak.expected_bytes());
        // The plan that the job was admitted with is a bound.
        EXPECT_LE(peak.peak_bytes(), 1.05 * peak.planned_bytes());
        ExpectNear("weights", peak.weights(),
                   Planned(job, "dense weights") +
                       Planned(job, "expert weights") +
                       Planned(job, "adapter weights"));
        ExpectNear("gradients", peak.gradients(),
                   Planned(job, "dense gradients") +
                       Planned(job, "expert gradients") +
                       Planned(job, "adapter gradients"));
        ExpectNear("optimizer", peak.optimizer(),
                   Planned(job, "dense optimizer state") +
                       Planned(job, "expert optimizer state") +
                       Planned(job, "adapter optimizer state"));
        ExpectNear("gather", peak.gather(), Planned(job, "gather buffers"));
        ExpectNear("reduce", peak.reduce(), Planned(job, "reduce buffers"));
        RecordProperty(
            absl::StrCat(layout.name, full ? "_full_" : "_lora_", rank),
            peak.ShortDebugString());
      }
    }
  }
}

}  // namespace
}  // namespace cadre::testing
