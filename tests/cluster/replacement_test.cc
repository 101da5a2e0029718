// Experts that move between real worker processes while a job trains.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/skewed_model.h"

namespace cadre::testing {
namespace {

using cadre::v1::Event;
using cadre::v1::Job;
using cadre::v1::JobSpec;
using ::testing::Contains;

constexpr int kWorkers = 4;

class ReplacementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = NewTestFolder();
    cluster_ = std::make_unique<Cluster>(dir_);
    ASSERT_OK(cluster_->StartCoordinator());
    for (int i = 0; i < kWorkers; ++i) ASSERT_OK(cluster_->StartWorker(i));
  }

  // 64 experts with lognormal loads of sigma 1 on four workers.
  absl::StatusOr<JobSpec> MakeJob(int steps) {
    CADRE_ASSIGN_OR_RETURN(JobSpec spec, cluster_->MakeJob(kWorkers, steps));
    const std::string skewed = dir_ + "/skewed";
    CADRE_RETURN_IF_ERROR(WriteSkewedModel({}, cluster_->model_dir(), skewed));
    spec.mutable_model()->set_path(skewed);
    std::string lines;
    for (const std::string& line : SkewedText(256)) {
      absl::StrAppend(&lines, "{\"text\":\"", line, "\"}\n");
    }
    const std::string data = dir_ + "/skewed.jsonl";
    CADRE_RETURN_IF_ERROR(WriteFileAtomic(data, lines));
    spec.mutable_data()->set_train(0, data);
    spec.mutable_training()->set_global_batch_size(2 * kWorkers);
    spec.mutable_training()->set_learning_rate(1e-3);
    spec.mutable_parallelism()->set_expert_parallel_size(kWorkers);
    spec.mutable_moe()->set_spare_slots_per_rank(1);
    spec.mutable_moe()->set_rebalance_every(10);
    return spec;
  }

  void Submit(const JobSpec& spec, const std::string& id) {
    cadre::v1::CreateJobRequest request;
    request.set_job_id(id);
    *request.mutable_spec() = spec;
    ASSERT_OK(cluster_->client().Create(request).status());
  }

  // To the end of the job.
  Job Watch(const std::string& id,
            const std::function<void(const Event&)>& on_event) {
    EXPECT_OK(
        cluster_->client().Watch({.job = id, .on_item = [&](const auto& item) {
                                    if (!item.has_event()) return;
                                    events_.push_back(item.event().type());
                                    on_event(item.event());
                                  }}));
    const auto job = cluster_->client().Get(id, cadre::v1::JOB_VIEW_FULL);
    EXPECT_OK(job);
    if (!job.ok()) return Job();
    EXPECT_EQ(job->state(), cadre::v1::JOB_STATE_SUCCEEDED)
        << job->failure().ShortDebugString();
    return *job;
  }

  // Values of a series by step.
  std::map<int64_t, double> Series(const std::string& id,
                                   const std::string& name) {
    cadre::v1::GetMetricsRequest request;
    request.set_name(id);
    request.add_series(name);
    const auto response = cluster_->client().GetMetrics(request);
    EXPECT_OK(response);
    std::map<int64_t, double> values;
    if (!response.ok() || response->series_size() != 1) return values;
    for (const auto& point : response->series(0).points()) {
      values[point.step()] = point.value();
    }
    return values;
  }
  static double Mean(const std::map<int64_t, double>& values, int64_t first,
                     int64_t last) {
    double sum = 0;
    int64_t count = 0;
    for (auto it = values.lower_bound(first);
         it != values.end() && it->first <= last; ++it, ++count) {
      sum += it->second;
    }
    return count > 0 ? sum / static_cast<double>(count) : 0;
  }

  cadre::v1::GetExpertLoadsResponse Loads(const std::string& id) {
    cadre::v1::GetExpertLoadsRequest request;
    request.set_job(id);
    const auto loads = cluster_->client().GetExpertLoads(request);
    EXPECT_OK(loads);
    return loads.ok() ? *loads : cadre::v1::GetExpertLoadsResponse();
  }
  // Standard deviation of the logarithm of the experts' loads, mean of layers.
  static double Sigma(const cadre::v1::GetExpertLoadsResponse& loads) {
    double sum = 0;
    for (const auto& layer : loads.layers()) {
      double total = 0, squares = 0;
      for (const int64_t n : layer.tokens()) {
        const double x = std::log(std::max(0.5, static_cast<double>(n)));
        total += x;
        squares += x * x;
      }
      const int n = layer.tokens_size();
      sum += std::sqrt(squares / n - total / n * (total / n));
    }
    return sum / std::max(1, loads.layers_size());
  }

  std::string dir_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::string> events_;
};

TEST_F(ReplacementTest, SkewedLoadsAreBalancedWhileTheJobTrains) {
  ASSERT_OK_AND_ASSIGN(JobSpec spec, MakeJob(60));
  ASSERT_OK(cluster_->SlowDown());
  Submit(spec, "moving");
  int64_t moved_at = 0;
  Watch("moving", [&](const Event& event) {
    if (event.type() == "EXPERTS_REBALANCED" && moved_at == 0) {
      moved_at = std::stoll(event.data().at("step"));
      cluster_->SpeedUp();
    }
  });
  EXPECT_THAT(events_, Contains("EXPERT_REPLACEMENT_PLANNED"));
  ASSERT_THAT(events_, Contains("EXPERTS_REBALANCED"));
  const auto balance = Series("moving", "rank_balancedness");
  ASSERT_EQ(balance.size(), 60u);
  const auto loads = Loads("moving");
  const double before = Mean(balance, 1, moved_at);
  const double after = Mean(balance, moved_at + 1, 60);
  std::printf(
      "sigma of log loads %.3f; balancedness of ranks per step: in order %.4f "
      "(steps 1 to %d), afterwards %.4f; newest window %.4f; placement %d, %d "
      "moves of placement\n",
      Sigma(loads), before, static_cast<int>(moved_at), after,
      loads.rank_balancedness(), static_cast<int>(loads.plan_epoch()),
      static_cast<int>(loads.replacements()));
  EXPECT_NEAR(Sigma(loads), 1.0, 0.25);
  EXPECT_LT(before, 0.85);
  EXPECT_GE(loads.rank_balancedness(), 0.95);
  EXPECT_GE(loads.plan_epoch(), 1);

  // In order from beginning to end it learns the same. Sums are rounded in
  // another order, and now and then that flips a router's choice.
  spec.mutable_moe()->set_placement("contiguous");
  spec.mutable_moe()->set_spare_slots_per_rank(0);
  Submit(spec, "still");
  Watch("still", [](const Event&) {});
  const auto moving = Series("moving", "loss"), still = Series("still", "loss");
  ASSERT_EQ(moving.size(), still.size());
  for (const auto& [step, loss] : still) {
    EXPECT_NEAR(moving.at(step), loss, 2e-3 * loss) << "step " << step;
  }
  EXPECT_LT(Loads("still").rank_balancedness(), 0.85);
}

TEST_F(ReplacementTest, AKillWhileExpertsMoveCostsOneAttempt) {
  ASSERT_OK_AND_ASSIGN(const JobSpec spec, MakeJob(60));
  ASSERT_OK(cluster_->SlowDown());
  Submit(spec, "killed");
  bool killed = false;
  const Job job = Watch("killed", [&](const Event& event) {
    if (killed || event.type() != "EXPERT_REPLACEMENT_PLANNED") return;
    killed = true;
    EXPECT_OK(cluster_->StartWorker(1));  // kills the former one
    cluster_->SpeedUp();
  });
  ASSERT_TRUE(killed);
  ASSERT_EQ(job.attempts_size(), 2);
  EXPECT_EQ(job.attempts(0).cause(), cadre::v1::FAILURE_CAUSE_WORKER_LOST);
  EXPECT_EQ(job.progress().step(), 60);
  // Fewer steps are left to learn the loads from.
  EXPECT_GE(Loads("killed").rank_balancedness(), 0.95);
}

TEST_F(ReplacementTest, AnOperatorMovesExpertsOfAJobThatKeepsThem) {
  ASSERT_OK_AND_ASSIGN(JobSpec spec, MakeJob(60));
  spec.mutable_moe()->set_rebalance("off");
  ASSERT_OK(cluster_->SlowDown());
  Submit(spec, "ordered");
  bool ordered = false;
  Watch("ordered", [&](const Event& event) {
    if (event.type() == "EXPERTS_REBALANCED") cluster_->SpeedUp();
    if (ordered || event.type() != "CHECKPOINT_COMMITTED") return;
    // Before the first window is in, the order is refused with a reason.
    const auto response = cluster_->client().RebalanceExperts("ordered");
    ordered = response.ok() && response->ordered();
  });
  ASSERT_TRUE(ordered);
  EXPECT_THAT(events_, Contains("EXPERTS_REBALANCED"));
  EXPECT_EQ(Loads("ordered").plan_epoch(), 1);
  EXPECT_GE(Loads("ordered").rank_balancedness(), 0.95);
}

}  // namespace
}  // namespace cadre::testing
