#include "worker/worker_metrics.h"

#include <cmath>
#include <string>

#include "base/metrics/registry.h"
#include "base/status_matchers.h"
#include "kernels/common/device_error.h"
#include "worker/expert_balance.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerMetricsTest, BalanceIsMeanOverMax) {
  const ExpertBalance balance = MeasureBalance({{4, 0, 2, 2}, {3, 3, 3, 3}});
  EXPECT_DOUBLE_EQ(balance.balancedness_step, (2.0 + 3.0) / (4.0 + 3.0));
  EXPECT_DOUBLE_EQ(balance.balancedness_worst, 0.5);
  EXPECT_DOUBLE_EQ(balance.cv_max, std::sqrt(2.0) / 2.0);
  EXPECT_DOUBLE_EQ(balance.dead_max, 0.25);
  EXPECT_DOUBLE_EQ(balance.dead_mean, 0.125);
  EXPECT_EQ(balance.routed, 20);
  EXPECT_TRUE(std::isnan(MeasureBalance({{0, 0}}).balancedness_step));
}

TEST(WorkerMetricsTest, StepsShowInTheExposition) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {.version = "1", .worker = "host.0"});
  EXPECT_THAT(registry.Text(), HasSubstr("cadre_train_loss Nan"));
  StepMetrics step;
  step.loss = 2.5;
  step.grad_norm = 0.5;
  step.expert_tokens = {{1, 3}};
  metrics.ObserveStep(step, {.rank_zero = true,
                             .own_tokens = 6,
                             .own_targets = 4,
                             .own_padding = 2,
                             .own_routed = 4});
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("cadre_train_steps_total 1"));
  EXPECT_THAT(text, HasSubstr("cadre_train_loss 2.5"));
  EXPECT_THAT(text, HasSubstr("cadre_train_packing_fill_ratio 0.75"));
  EXPECT_THAT(
      text,
      HasSubstr("cadre_moe_expert_balancedness_ratio{stat=\"step\"} 0.66"));
  metrics.JobLeft();
  EXPECT_THAT(registry.Text(), HasSubstr("cadre_train_loss Nan"));
  EXPECT_THAT(registry.Text(), HasSubstr("cadre_train_steps_total 1"));
}

TEST(WorkerMetricsTest, ShowsWhereTimeAndMemoryGo) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {});
  StepMetrics step;
  step.step_seconds = 2;
  step.optimizer_seconds = 0.25;
  step.phases[static_cast<size_t>(Phase::kRouter)] = 0.5;
  step.forward_seconds = 0.75;
  step.backward_seconds = 1;
  step.memory = {.weights = 60,
                 .adapter = 10,
                 .gradients = 5,
                 .optimizer = 15,
                 .gather = 3,
                 .reduce = 4,
                 .activations = 63,
                 .workspace = 23,
                 .step_activations = 50,
                 .step_workspace = 20};
  step.expert_tokens = {{4, 0, 2, 2}};
  step.rank_tokens = {{4, 4}, {6, 2}};
  step.exchanges = {.dispatch_seconds = 0.004,
                    .combine_seconds = 0.5,
                    .exposed_seconds = 0.25,
                    .dispatch_bytes = {30, 12, 5},
                    .combine_bytes = {20, 8, 2}};
  metrics.ObserveStep(step, {.own_padding_rows = 3,
                             .own_flops = 1e9,
                             .peak_flops = 2e9,
                             .planned_bytes = 100,
                             .expected_bytes = 120});
  metrics.SetDeviceMemory(200, 7);
  metrics.ObserveLoad(3);
  metrics.CountDeviceError(DeviceErrorKind::kHardware);
  const std::string text = registry.Text();
  for (const char* line :
       {"cadre_train_phase_seconds_total{phase=\"router\"} 0.5",
        "cadre_train_phase_seconds_total{phase=\"optimizer\"} 0.25",
        "cadre_train_phase_seconds_total{phase=\"exposed\"} 0.25",
        "cadre_train_model_flops_total 1000000000",
        "cadre_train_mfu_ratio 0.25", "cadre_train_memory_planned_bytes 100",
        "cadre_train_memory_expected_bytes 120",
        "cadre_moe_padding_rows_total 3",
        "cadre_device_memory_plan_error_ratio 0.5",
        "cadre_train_step_seconds_sum{phase=\"forward\"} 0.75",
        "cadre_train_step_seconds_sum{phase=\"backward\"} 1",
        "cadre_device_memory_bytes{pool=\"weights\"} 50",
        "cadre_device_memory_bytes{pool=\"adapter\"} 10",
        "cadre_device_memory_bytes{pool=\"gradients\"} 5",
        "cadre_device_memory_bytes{pool=\"optimizer\"} 15",
        "cadre_device_memory_bytes{pool=\"activations\"} 30",
        "cadre_device_memory_bytes{pool=\"workspace\"} 20",
        "cadre_device_memory_bytes{pool=\"comm\"} 7",
        // 200 less the pools above.
        "cadre_device_memory_bytes{pool=\"other\"} 63",
        "cadre_device_memory_peak_bytes{pool=\"activations\"} 40",
        "cadre_device_memory_peak_bytes{pool=\"workspace\"} 23",
        "cadre_device_memory_peak_bytes{pool=\"comm\"} 7",
        "cadre_device_errors_total{kind=\"hardware\"} 1",
        "cadre_device_errors_total{kind=\"launch\"} 0",
        "cadre_device_memory_bytes{pool=\"free\"} 7",
        "cadre_moe_rank_balancedness_ratio{stat=\"step\"} 0.8",
        "cadre_moe_rank_balancedness_ratio{stat=\"worst_layer\"} 0.66",
        "cadre_moe_all_to_all_seconds_bucket{direction=\"dispatch\",le="
        "\"0.005\"} 1",
        "cadre_moe_all_to_all_exposed_seconds_total 0.25",
        "cadre_moe_all_to_all_bytes_total{direction=\"dispatch\",tier="
        "\"self\"} 30",
        "cadre_moe_all_to_all_bytes_total{direction=\"combine\",tier="
        "\"link\"} 8",
        "cadre_moe_all_to_all_bytes_total{direction=\"combine\",tier="
        "\"network\"} 2",
        "cadre_checkpoint_load_seconds_sum 3"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  metrics.JobLeft();
  metrics.SetDeviceMemory(200, 7);
  for (const char* line :
       {"cadre_train_mfu_ratio Nan",
        "cadre_device_memory_bytes{pool=\"weights\"} 0",
        "cadre_device_memory_bytes{pool=\"other\"} 200",
        "cadre_device_memory_peak_bytes{pool=\"weights\"} Nan"}) {
    EXPECT_THAT(registry.Text(), HasSubstr(line));
  }
}

TEST(WorkerMetricsTest, RanksAreJudgedByTheStepsUnderThePlacementInForce) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {});
  StepMetrics step;
  const auto balance = [&](std::vector<int64_t> tokens, int64_t plan_epoch) {
    step.rank_tokens = {std::move(tokens)};
    step.plan_epoch = plan_epoch;
    metrics.ObserveStep(step, {});
    const std::string text = registry.Text();
    const std::string name =
        "cadre_moe_rank_balancedness_ratio{stat=\"step\"} ";
    return std::stod(text.substr(text.find("\n" + name) + 1 + name.size()));
  };
  EXPECT_DOUBLE_EQ(balance({6, 2}, 0), 4.0 / 6);
  EXPECT_DOUBLE_EQ(balance({2, 6}, 0), 1) << "over both steps";
  EXPECT_DOUBLE_EQ(balance({5, 3}, 1), 4.0 / 5) << "the window began anew";
}

TEST(WorkerMetricsTest, TheAssignmentIsASeriesOnlyWhileItLasts) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {});
  metrics.JobEntered("j-a", 3, 1);
  EXPECT_THAT(registry.Text(),
              HasSubstr("cadre_worker_assignment_info{attempt=\"3\",job="
                        "\"j-a\",rank=\"1\"} 1"));
  metrics.JobLeft();
  EXPECT_THAT(registry.Text(), Not(HasSubstr("j-a")));
  metrics.JobLeft();
}

TEST(WorkerMetricsTest, LossIsShownByRankZeroOnly) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {});
  StepMetrics step;
  step.loss = 2.5;
  metrics.ObserveStep(step, {.rank_zero = false});
  EXPECT_THAT(registry.Text(), Not(HasSubstr("cadre_train_loss 2.5")));
}

TEST(WorkerMetricsTest, AWorkerHasABoundedNumberOfSeries) {
  MetricsRegistry registry;
  WorkerMetrics metrics(&registry, {});
  metrics.JobEntered("j-a", 1, 0);
  int64_t series = 0;
  const std::string text = registry.Text();
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    series += text[i] == '\n' && text[i + 1] != '#';
  }
  EXPECT_LE(series, 400);
}

}  // namespace
}  // namespace cadre
