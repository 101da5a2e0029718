// The parts of the worker that need neither a server nor a model.
#include <cmath>
#include <string>
#include <thread>

#include "base/metrics/registry.h"
#include "base/status_matchers.h"
#include "kernels/common/device_error.h"
#include "worker/comm/peer_failure.h"
#include "worker/expert_balance.h"
#include "worker/failure.h"
#include "worker/rendezvous_client.h"
#include "worker/report_buffer.h"
#include "worker/session_link.h"
#include "worker/train/trainer.h"
#include "worker/worker_metrics.h"

namespace cadre {
namespace {

using cadre::testing::StatusIs;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using cadre::v1::Report;
using cadre::v1::SyncRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Hours(1);

Report Scalars(int64_t step) {
  Report report;
  report.mutable_scalars()->set_step(step);
  return report;
}

Report Saved(int64_t step) {
  Report report;
  report.mutable_files_saved()->set_step(step);
  return report;
}

// ---- ReportBuffer ----------------------------------------------------------

TEST(ReportBufferTest, NumbersReportsAndForgetsAcceptedOnes) {
  ReportBuffer buffer;
  for (int i = 1; i <= 3; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  ASSERT_EQ(request.reports_size(), 3);
  EXPECT_EQ(request.reports(2).report_seq(), 3);
  buffer.Accept(2);
  buffer.Accept(1);  // late and repeated answers are harmless
  SyncRequest second;
  buffer.AppendTo(&second);
  ASSERT_EQ(second.reports_size(), 1);
  EXPECT_EQ(second.reports(0).report_seq(), 3);
  buffer.Accept(3);
  EXPECT_TRUE(buffer.empty());
}

TEST(ReportBufferTest, OneSyncCarriesABoundedPart) {
  ReportBuffer buffer({.max_bytes_per_sync = 1});
  for (int i = 1; i <= 3; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  ASSERT_EQ(request.reports_size(), 1);
  EXPECT_EQ(request.reports(0).report_seq(), 1);
}

TEST(ReportBufferTest, ThinsScalarsAndKeepsSavesWhenFull) {
  ReportBuffer buffer({.max_bytes = 2000});
  for (int i = 1; i <= 20; ++i) buffer.Add(Saved(i));
  for (int i = 1; i <= 1000; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  int64_t saves = 0, previous = 0, last_scalars = 0;
  for (const Report& report : request.reports()) {
    saves += report.has_files_saved();
    if (report.has_scalars()) last_scalars = report.scalars().step();
    EXPECT_GT(report.report_seq(), previous);
    previous = report.report_seq();
  }
  EXPECT_EQ(saves, 20);
  EXPECT_EQ(last_scalars, 1000);
  EXPECT_GT(buffer.num_dropped(), 500);
  EXPECT_LE(request.ByteSizeLong(), 2200u);
}

// ---- SessionLink and RendezvousClient --------------------------------------

class LinkTest : public ::testing::Test {
 protected:
  SyncRequest State() {
    SyncRequest request;
    link_.FillState(&request);
    return request;
  }
  ReportBuffer reports_;
  int changes_ = 0;
  SessionLink link_{4, &reports_, [this] { ++changes_; }};
};

TEST_F(LinkTest, ShowsEachStateAndKeepsTheLast) {
  EXPECT_TRUE(State().has_preparing());
  link_.SetPreparing("model", 3, 10);
  EXPECT_EQ(State().preparing().stage(), "model");
  link_.Publish("address", "1.2.3.4");
  EXPECT_EQ(State().preparing().published().at("address"), "1.2.3.4");
  link_.SetReady();
  EXPECT_TRUE(State().has_ready());
  link_.SetPhase("train");
  EXPECT_EQ(State().running().phase(), "train");
  EXPECT_EQ(State().running().published().at("address"), "1.2.3.4");
  link_.SetPhase("save");
  link_.SetStepsDone();
  EXPECT_EQ(State().running().phase(), "save");
  EXPECT_TRUE(State().running().steps_done());
  EndedState ended;
  ended.set_result(EndedState::RESULT_DONE);
  link_.SetEnded(ended);
  link_.SetPhase("train");
  EXPECT_EQ(State().ended().result(), EndedState::RESULT_DONE);
  EXPECT_EQ(State().attempt_epoch(), 4);
}

TEST_F(LinkTest, ReportsStoppingUntilEnded) {
  link_.SetPhase("train");
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
  EXPECT_EQ(State().stopping().mode(), cadre::v1::STOP_MODE_CHECKPOINT);
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "late");
  EXPECT_EQ(State().stopping().mode(), cadre::v1::STOP_MODE_NOW);
  EXPECT_EQ(link_.stop_reason(), "cancel");
  link_.SetEnded({});
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, AGoodEndIsToldOnlyWhenAllReportsAreAccepted) {
  link_.SetPhase("export");
  link_.Attach({.abort = [] {},
                .step = [] { return int64_t{4}; },
                .collective_seq = [] { return int64_t{9}; }});
  link_.Detach();
  link_.AddReport(Saved(5));
  EndedState ended;
  ended.set_result(EndedState::RESULT_DONE);
  ended.set_step(5);
  link_.SetEnded(ended);
  EXPECT_EQ(State().running().phase(), "export");
  EXPECT_EQ(State().running().step(), 5);
  EXPECT_EQ(State().running().collective_seq(), 9);
  reports_.Accept(1);
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, ABadEndIsToldAtOnce) {
  link_.AddReport(Saved(5));
  EndedState ended;
  ended.set_result(EndedState::RESULT_ERROR);
  link_.SetEnded(ended);
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, WaitPrefersStopThenSealThenTarget) {
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, absl::ZeroDuration()),
            SessionLink::Wake::kDeadline);
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  link_.SetTarget(DesiredRun::TARGET_PREPARE);  // never back
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, kLong),
            SessionLink::Wake::kTarget);
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, kLong),
            SessionLink::Wake::kStopCheckpoint);
  EXPECT_EQ(link_.Wait(std::nullopt, absl::ZeroDuration()),
            SessionLink::Wake::kDeadline);
  link_.RequestSeal({.step = 10});
  EXPECT_EQ(link_.Wait(std::nullopt, kLong), SessionLink::Wake::kSeal);
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  EXPECT_EQ(link_.Wait(std::nullopt, kLong), SessionLink::Wake::kStopNow);
}

TEST_F(LinkTest, ASealIsHandedOutOnceThoughItIsRepeated) {
  link_.RequestSeal({.step = 10});
  ASSERT_TRUE(link_.TakeSeal().has_value());
  link_.RequestSeal({.step = 10});
  EXPECT_FALSE(link_.TakeSeal().has_value());
  link_.RequestSeal({.step = 20});
  EXPECT_EQ(link_.TakeSeal()->step, 20);
}

TEST_F(LinkTest, RemovalsAreHandedOutOnceEach) {
  link_.RequestRemovals({"a", "b"});
  link_.RequestRemovals({"b"});
  EXPECT_THAT(link_.TakeRemovals(), ElementsAre("a", "b"));
  EXPECT_TRUE(link_.TakeRemovals().empty());
}

TEST_F(LinkTest, TheAbortHookRunsAlsoWhenTheOrderCameFirst) {
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  int aborts = 0;
  link_.Attach({.abort = [&] { ++aborts; }});
  link_.Detach();  // waits for it
  EXPECT_EQ(aborts, 1);
}

TEST_F(LinkTest, NoHookRunsAfterDetach) {
  int aborts = 0;
  link_.Attach({.abort = [&] { ++aborts; }});
  link_.Detach();
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  EXPECT_EQ(aborts, 0);
}

TEST_F(LinkTest, RendezvousGivesWhatThePeersPublished) {
  RendezvousClient store(&link_);
  ASSERT_OK(store.Set("rank0", "here"));
  EXPECT_EQ(State().preparing().published().at("rank0"), "here");
  EXPECT_GT(changes_, 0);
  std::thread agent([&] {
    cadre::v1::Rendezvous rendezvous;
    (*rendezvous.mutable_values())["rank1"] = "there";
    link_.SetRendezvous(rendezvous);
  });
  ASSERT_OK_AND_ASSIGN(const std::string value, store.Get("rank1", kLong));
  EXPECT_EQ(value, "there");
  agent.join();
}

TEST_F(LinkTest, RendezvousNamesTheMissingKey) {
  RendezvousClient store(&link_);
  EXPECT_THAT(
      store.Get("rank1", absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'rank1'")));
}

TEST_F(LinkTest, RendezvousEndsWhenToldToStop) {
  RendezvousClient store(&link_);
  std::thread agent(
      [&] { link_.RequestStop(cadre::v1::STOP_MODE_NOW, "rank 1 is lost"); });
  EXPECT_THAT(store.Get("rank1", kLong), StatusIs(absl::StatusCode::kAborted,
                                                  HasSubstr("rank 1 is lost")));
  agent.join();
}

TEST_F(LinkTest, RendezvousPublishesABoundedNumberOfBytes) {
  RendezvousClient store(&link_);
  ASSERT_OK(store.Set("a", std::string(60 << 10, 'x')));
  EXPECT_THAT(store.Set("b", std::string(8 << 10, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// ---- EndedByError ----------------------------------------------------------

TEST(FailureTest, TheCauseFollowsTheCodeAndWhatWasDone) {
  const auto cause = [](const absl::Status& status, Activity activity) {
    return EndedByError(status, activity).cause();
  };
  EXPECT_EQ(cause(absl::NotFoundError("x"), Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_USER);
  EXPECT_EQ(cause(absl::NotFoundError("x"), Activity::kSave),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::ResourceExhaustedError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_OUT_OF_MEMORY);
  EXPECT_EQ(cause(absl::ResourceExhaustedError("x"), Activity::kSave),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::OutOfRangeError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_NUMERIC);
  EXPECT_EQ(cause(absl::DataLossError("x"), Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::InternalError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_INTERNAL);
  const auto device = [&](DeviceErrorKind kind) {
    return cause(WithDeviceError(absl::UnavailableError("x"), kind),
                 Activity::kSave);
  };
  EXPECT_EQ(device(DeviceErrorKind::kLaunch),
            cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_EQ(device(DeviceErrorKind::kHardware),
            cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_EQ(cause(WithDeviceError(absl::FailedPreconditionError("x"),
                                  DeviceErrorKind::kDriver),
                  Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_USER);
}

TEST(FailureTest, APeersFailureIsSecondary) {
  const EndedState ended = EndedByError(
      absl::UnavailableError("rank 2 closed the connection"), Activity::kTrain);
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_COMMUNICATION);
  EXPECT_TRUE(ended.secondary());
  EXPECT_THAT(ended.evidence(), HasSubstr("while training"));
  EXPECT_THAT(ended.evidence(), HasSubstr("rank 2 closed the connection"));
  EXPECT_FALSE(
      EndedByError(absl::InternalError("x"), Activity::kTrain).secondary());
}

TEST(DeviceErrorTest, TheKindTravelsWithTheStatusButNotOnTheWire) {
  const absl::Status status =
      Annotate(WithDeviceError(absl::InternalError("cudaStreamSynchronize"),
                               DeviceErrorKind::kLaunch),
               "layer 3");
  EXPECT_EQ(DeviceErrorOf(status), DeviceErrorKind::kLaunch);
  EXPECT_EQ(WithoutDeviceError(status),
            absl::InternalError("layer 3: cudaStreamSynchronize"));
  EXPECT_EQ(DeviceErrorOf(absl::InternalError("x")), std::nullopt);
}

TEST(FailureTest, AFailedPeerIsNamedByItsWorker) {
  cadre::v1::Assignment assignment;
  assignment.add_workers("a.0");
  assignment.add_workers("b.0");
  const absl::Status named = NamePeer(
      Annotate(
          WithFailedPeer(absl::DeadlineExceededError("rank 1 was silent"), 1),
          "step 7"),
      assignment);
  EXPECT_EQ(named.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(named.message(),
            "lost rank 1 (worker b.0): step 7: rank 1 was silent");
  EXPECT_EQ(FailedPeer(named), std::nullopt) << "would go into the details";
  const absl::Status unknown = absl::UnavailableError("somebody is gone");
  EXPECT_EQ(NamePeer(unknown, assignment), unknown);
}

// ---- WorkerMetrics ---------------------------------------------------------

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
