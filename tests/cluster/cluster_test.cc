// Jobs from submission to result over real processes, undisturbed and with
// processes killed on the way.
#include "tests/cluster/cluster.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "model/model_spec.h"
#include "model/peft_adapter.h"

namespace cadre::testing {
namespace {

using cadre::v1::CreateJobRequest;
using cadre::v1::Event;
using cadre::v1::Job;
using cadre::v1::JobSpec;

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = NewTestFolder();
    cluster_ = std::make_unique<Cluster>(dir_);
    ASSERT_OK(cluster_->StartCoordinator());
    ASSERT_OK(cluster_->StartWorker(0));
    ASSERT_OK(cluster_->StartWorker(1));
  }

  void Submit(const JobSpec& spec, const std::string& id = "tiny") {
    CreateJobRequest request;
    request.set_job_id(id);
    *request.mutable_spec() = spec;
    ASSERT_OK(cluster_->client().Create(request).status());
  }

  // Slowly until Disturb() is over.
  void SubmitSlow(const JobSpec& spec) {
    ASSERT_OK(cluster_->SlowDown());
    Submit(spec);
  }

  // Watches to the end of the job; `on_save` is called after its first
  // checkpoint.
  Job Disturb(const std::function<void()>& on_save,
              std::vector<std::string>* types = nullptr) {
    bool disturbed = false;
    const Job job = Watch([&](const Event& event) {
      if (types != nullptr) types->push_back(event.type());
      if (disturbed || event.type() != "CHECKPOINT_COMMITTED") return;
      disturbed = true;
      on_save();
      cluster_->SpeedUp();
    });
    EXPECT_TRUE(disturbed);
    return job;
  }

  // Watches to the end of the job; `on_event` hears each event once.
  Job Watch(const std::function<void(const Event&)>& on_event,
            const std::string& id = "tiny") {
    const absl::Status status =
        cluster_->client().Watch({.job = id, .on_item = [&](const auto& item) {
                                    if (!item.has_event()) return;
                                    seen_.push_back(item.event().sequence());
                                    on_event(item.event());
                                  }});
    EXPECT_OK(status);
    const absl::StatusOr<Job> job =
        cluster_->client().Get(id, cadre::v1::JOB_VIEW_FULL);
    EXPECT_OK(job);
    return job.ok() ? *job : Job();
  }

  // The live watch, interrupted as it may have been, gave the whole history.
  void ExpectNoEventLost() {
    std::vector<int64_t> history;
    ASSERT_OK(cluster_->client().Watch(
        {.job = "tiny", .history_only = true, .on_item = [&](const auto& item) {
           if (item.has_event()) history.push_back(item.event().sequence());
         }}));
    // A watch that began with a snapshot starts after the events in it.
    ASSERT_FALSE(seen_.empty());
    ASSERT_LE(seen_.size(), history.size());
    EXPECT_EQ(seen_, std::vector<int64_t>(history.end() - seen_.size(),
                                          history.end()));
    for (size_t i = 1; i < history.size(); ++i) {
      EXPECT_EQ(history[i], history[i - 1] + 1);
    }
  }

  void ExpectSameLosses(const std::string& a, const std::string& b, int steps) {
    std::vector<cadre::v1::MetricSeries> curves;
    for (const std::string& id : {a, b}) {
      cadre::v1::GetMetricsRequest request;
      request.set_name(id);
      request.add_series("loss");
      ASSERT_OK_AND_ASSIGN(const auto metrics,
                           cluster_->client().GetMetrics(request));
      ASSERT_EQ(metrics.series_size(), 1);
      ASSERT_EQ(metrics.series(0).points_size(), steps) << id;
      curves.push_back(metrics.series(0));
    }
    for (int i = 0; i < steps; ++i) {
      const double value = curves[0].points(i).value();
      EXPECT_NEAR(value, curves[1].points(i).value(), 1e-3 * value) << i;
    }
  }

  void ExpectGoodAdapter(const Job& job) {
    ASSERT_EQ(job.state(), cadre::v1::JOB_STATE_SUCCEEDED)
        << job.failure().ShortDebugString();
    ASSERT_EQ(job.artifacts_size(), 1);
    ASSERT_OK_AND_ASSIGN(const std::string config,
                         ReadFile(cluster_->model_dir() + "/config.json"));
    ASSERT_OK_AND_ASSIGN(const ModelSpec spec, ParseModelSpec(config));
    ASSERT_OK_AND_ASSIGN(
        const PeftAdapter adapter,
        ReadPeftAdapter(job.artifacts(0).storage_path(), spec));
    EXPECT_FALSE(adapter.weights.empty());
    // B starts at zero: whatever is not zero was learned.
    bool learned = false;
    for (const AdapterWeights& weights : adapter.weights) {
      for (const float value : weights.b) learned = learned || value != 0.0f;
    }
    EXPECT_TRUE(learned);
  }

  std::string dir_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<int64_t> seen_;
};

TEST_F(ClusterTest, TwoWorkersTrainAndExportAnAdapter) {
  ASSERT_OK_AND_ASSIGN(const JobSpec spec, cluster_->MakeJob(2, 12));
  Submit(spec);
  const Job job = Watch([](const Event&) {});
  ExpectGoodAdapter(job);
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.progress().step(), 12);
  EXPECT_LT(job.progress().loss(), job.progress().first_loss());
  EXPECT_EQ(job.latest_checkpoint().step(), 12);
  ExpectNoEventLost();
}

// Dense parameters over two workers, experts over two: the loss of one worker.
TEST_F(ClusterTest, FourWorkersShareOneModel) {
  ASSERT_OK(cluster_->StartWorker(2));
  ASSERT_OK(cluster_->StartWorker(3));
  ASSERT_OK_AND_ASSIGN(JobSpec alone, cluster_->MakeJob(1, 6));
  alone.mutable_training()->set_global_batch_size(8);
  Submit(alone, "alone");
  const Job one = Watch([](const Event&) {}, "alone");
  ExpectGoodAdapter(one);
  JobSpec spec = alone;
  spec.mutable_resources()->set_workers(4);
  spec.mutable_parallelism()->set_fsdp_shard_group_size(2);
  spec.mutable_parallelism()->set_expert_parallel_size(2);
  Submit(spec, "four");
  const Job four = Watch([](const Event&) {}, "four");
  ExpectGoodAdapter(four);
  EXPECT_EQ(four.plan().fsdp_shard_group_size(), 2);
  EXPECT_EQ(four.plan().expert_parallel_size(), 2);
  EXPECT_EQ(four.progress().step(), one.progress().step());
  EXPECT_NEAR(four.progress().first_loss(), one.progress().first_loss(),
              2e-5 * one.progress().first_loss());
  EXPECT_NEAR(four.progress().loss(), one.progress().loss(),
              1e-4 * one.progress().loss());
}

// A lost member of a sharded job ends the attempt; the next goes on from the
// checkpoint.
TEST_F(ClusterTest, AKilledWorkerOfAShardedJobCostsOneAttempt) {
  ASSERT_OK_AND_ASSIGN(JobSpec spec, cluster_->MakeJob(2, 60));
  spec.mutable_parallelism()->set_fsdp_shard_group_size(2);
  spec.mutable_parallelism()->set_expert_parallel_size(2);
  SubmitSlow(spec);
  const Job job = Disturb([&] {
    EXPECT_OK(cluster_->StartWorker(1));  // kills the former one
  });
  ExpectGoodAdapter(job);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).cause(), cadre::v1::FAILURE_CAUSE_WORKER_LOST);
  EXPECT_GE(job.attempts(1).from_step(), 5);
  EXPECT_EQ(job.progress().step(), 60);
}

// One of four is lost for good: after a while the job goes on with two, from
// the checkpoint, with the batches of before.
TEST_F(ClusterTest, AJobGoesOnWithFewerWorkers) {
  ASSERT_OK(cluster_->StartWorker(2));
  ASSERT_OK(cluster_->StartWorker(3));
  ASSERT_OK_AND_ASSIGN(JobSpec spec, cluster_->MakeJob(4, 40));
  spec.mutable_resources()->set_min_workers(2);
  SubmitSlow(spec);
  std::vector<std::string> types;
  const Job job = Disturb([&] { cluster_->worker(3).Kill(); }, &types);
  ExpectGoodAdapter(job);
  ASSERT_EQ(job.attempts_size(), 2);
  // Its peers may tell of it before its lease is over.
  EXPECT_THAT(job.attempts(0).cause(),
              ::testing::AnyOf(cadre::v1::FAILURE_CAUSE_WORKER_LOST,
                               cadre::v1::FAILURE_CAUSE_COMMUNICATION));
  EXPECT_EQ(job.attempts(0).workers_size(), 4);
  EXPECT_EQ(job.attempts(1).workers_size(), 2);
  EXPECT_GE(job.attempts(1).from_step(), 5);
  EXPECT_EQ(job.plan().world_size(), 2);
  EXPECT_EQ(job.progress().step(), 40);
  EXPECT_THAT(types, ::testing::Contains("PLANNED"));
  ExpectNoEventLost();

  // The curve is that of a job that nobody disturbed.
  spec.mutable_resources()->set_workers(1);
  spec.mutable_resources()->clear_min_workers();
  Submit(spec, "alone");
  ExpectGoodAdapter(Watch([](const Event&) {}, "alone"));
  ExpectSameLosses("tiny", "alone", 40);
}

TEST_F(ClusterTest, AnAdapterIsWhereAnotherJobStarts) {
  ASSERT_OK_AND_ASSIGN(JobSpec spec, cluster_->MakeJob(1, 12));
  spec.mutable_tuning()->set_lora_expert_layout("shared");
  Submit(spec);
  const Job first = Watch([](const Event&) {});
  ExpectGoodAdapter(first);

  const std::string& adapter = first.artifacts(0).storage_path();
  spec.mutable_model()->set_adapter(adapter);
  Submit(spec, "tiny-again");
  std::vector<std::string> told;
  const Job second = Watch(
      [&](const Event& event) { told.push_back(event.type()); }, "tiny-again");
  ExpectGoodAdapter(second);
  EXPECT_THAT(told, ::testing::Contains("ADAPTER_IMPORTED"));
  // It starts from what the first has learned, and learns more.
  EXPECT_LT(second.progress().first_loss(), first.progress().first_loss());
  EXPECT_LT(second.progress().loss(), second.progress().first_loss());

  // Gate and up share one A in both results.
  ASSERT_OK_AND_ASSIGN(const std::string config,
                       ReadFile(cluster_->model_dir() + "/config.json"));
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelSpec(config));
  for (const Job* job : {&first, &second}) {
    ASSERT_OK_AND_ASSIGN(
        const PeftAdapter read,
        ReadPeftAdapter(job->artifacts(0).storage_path(), model));
    EXPECT_EQ(read.layout, ExpertLayout::kFused);
  }
}

TEST_F(ClusterTest, AKilledWorkerCostsOneAttempt) {
  ASSERT_OK_AND_ASSIGN(const JobSpec spec, cluster_->MakeJob(2, 60));
  SubmitSlow(spec);
  const Job job = Disturb([&] {
    EXPECT_OK(cluster_->StartWorker(1));  // kills the former one
  });
  ExpectGoodAdapter(job);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).cause(), cadre::v1::FAILURE_CAUSE_WORKER_LOST);
  EXPECT_GE(job.attempts(1).from_step(), 5);
  EXPECT_EQ(job.progress().step(), 60);
  ExpectNoEventLost();
}

TEST_F(ClusterTest, AKilledCoordinatorCostsNothing) {
  ASSERT_OK_AND_ASSIGN(const JobSpec spec, cluster_->MakeJob(2, 60));
  SubmitSlow(spec);
  const Job job = Disturb([&] {
    cluster_->KillCoordinator();
    EXPECT_OK(cluster_->StartCoordinator());
  });
  ExpectGoodAdapter(job);
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_EQ(job.progress().step(), 60);
  ExpectNoEventLost();
}

TEST_F(ClusterTest, ADrainedWorkerSavesAndItsJobMoves) {
  ASSERT_OK_AND_ASSIGN(const JobSpec spec, cluster_->MakeJob(2, 60));
  SubmitSlow(spec);
  const Job job = Disturb([&] {
    cluster_->worker(1).Signal(SIGTERM);
    EXPECT_EQ(cluster_->worker(1).Wait(), 0);
    EXPECT_OK(cluster_->StartWorker(1));
  });
  ExpectGoodAdapter(job);
  ASSERT_EQ(job.attempts_size(), 2);
  // No step was lost.
  EXPECT_EQ(job.attempts(1).from_step(), job.attempts(0).to_step());
}

}  // namespace
}  // namespace cadre::testing
