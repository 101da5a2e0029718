// The API of the coordinator over gRPC: creation, idempotency, watches, errors.

#include <thread>

#include "base/rpc/error.h"
#include "base/rpc/health.h"
#include "cadre/v1/diagnostics.pb.h"
#include "coordinator/server_fixture.h"
#include "google/rpc/error_details.pb.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ApiTest : public ServerFixture {};

TEST_F(ApiTest, TheSameRequestTwiceIsOneJob) {
  const auto request = Request(1);
  ASSERT_OK_AND_ASSIGN(const auto first, Create(request));
  EXPECT_FALSE(first.replayed());
  ASSERT_OK_AND_ASSIGN(const auto again, Create(request));
  EXPECT_TRUE(again.replayed());
  EXPECT_EQ(again.job().name(), first.job().name());
  // Also over a restart, and although the data is bad by now.
  RestartServer();
  data_.head.status = absl::InvalidArgumentError("gone");
  ASSERT_OK_AND_ASSIGN(const auto later, Create(request));
  EXPECT_TRUE(later.replayed());
  EXPECT_EQ(later.job().uid(), first.job().uid());
}

TEST_F(ApiTest, AnotherBodyUnderAUsedIdIsRefused) {
  auto request = Request(1);
  ASSERT_OK_AND_ASSIGN(const auto first, Create(request));
  request.set_job_yaml(request.job_yaml() + "priority: 60\n");
  const absl::Status status = Create(request).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(ErrorReason(status), "REQUEST_ID_REUSED");
  EXPECT_EQ(GetDetail<google::rpc::ResourceInfo>(status)->resource_name(),
            first.job().name());
}

TEST_F(ApiTest, ManyClientsWithOneRequestIdGetOneJob) {
  const auto request = Request(1);
  std::vector<std::string> names(8);
  std::vector<std::thread> clients;
  for (std::string& name : names) {
    clients.emplace_back([&, out = &name] {
      auto response = Create(request);
      if (response.ok()) *out = response->job().name();
    });
  }
  for (std::thread& client : clients) client.join();
  for (const std::string& name : names) EXPECT_EQ(name, names[0]);
  EXPECT_THAT(names[0], StartsWith("jobs/j-"));
}

TEST_F(ApiTest, RequestsWithoutAnIdOrWithATakenNameAreRefused) {
  auto request = Request(1);
  request.set_request_id("7");
  EXPECT_EQ(ErrorReason(Create(request).status()), "REQUEST_ID_MISSING");
  request = Request(1);
  request.set_job_id("mine");
  ASSERT_OK_AND_ASSIGN(const auto first, Create(request));
  EXPECT_EQ(first.job().name(), "jobs/mine");
  request.set_request_id(Request(1).request_id());
  EXPECT_EQ(ErrorReason(Create(request).status()), "JOB_ID_TAKEN");
}

TEST_F(ApiTest, ValidateOnlyCreatesNothingAndKeepsTheIdFree) {
  auto request = Request(2);
  request.set_validate_only(true);
  ASSERT_OK_AND_ASSIGN(const auto checked, Create(request));
  EXPECT_EQ(checked.job().name(), "");
  EXPECT_EQ(checked.plan().world_size(), 2);
  EXPECT_EQ(checked.plan().accumulation_steps(), 6);
  EXPECT_GT(checked.plan().trainable_parameters(), 0);
  EXPECT_EQ(checked.job().config_snapshot().training().learning_rate(), 1e-4);
  request.set_validate_only(false);
  ASSERT_OK_AND_ASSIGN(const auto created, Create(request));
  EXPECT_FALSE(created.replayed());
}

TEST_F(ApiTest, EveryProblemOfAJobFileComesWithItsLine) {
  auto request = Request(1);
  request.set_job_yaml(R"(version: 1
model:
  config: config.json
  init: random
  tokenizer: .
data:
  train: [train.jsonl]
training:
  learning_rate: 3
  scedule: linear
  global_batch_size: 0
resources:
  workers: 1
  backend: cpu
)");
  absl::Status status = Create(request).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("line 10"), HasSubstr("schedule"))));
  EXPECT_EQ(ErrorReason(status), "JOB_FILE_INVALID");
  std::string text = request.job_yaml();
  text.erase(text.find("  scedule"), sizeof("  scedule: linear"));
  request.set_job_yaml(text);
  status = Create(request).status();
  const auto diagnostics = GetDetail<v1::Diagnostics>(status);
  ASSERT_TRUE(diagnostics.has_value());
  ASSERT_GE(diagnostics->items_size(), 2);
  EXPECT_EQ(diagnostics->items(0).field(), "training.learning_rate");
  EXPECT_EQ(diagnostics->items(0).line(), 9);
  EXPECT_EQ(diagnostics->items(1).field(), "training.global_batch_size");
  EXPECT_EQ(diagnostics->items(1).line(), 10);
  EXPECT_THAT(GetDetail<google::rpc::BadRequest>(status)
                  ->field_violations(0)
                  .description(),
              StartsWith("line 9, column "));
}

TEST_F(ApiTest, BadDataIsRefusedAtOnceOrFailsTheJobWithItsLines) {
  v1::Diagnostics bad;
  auto* item = bad.add_items();
  item->set_severity(v1::Diagnostic::SEVERITY_ERROR);
  item->set_file("train.jsonl");
  item->set_line(12);
  item->set_column(3);
  item->set_code("ROLE_ORDER");
  item->set_message("two users in a row");
  bad.set_total(1);
  data_.head.status = absl::InvalidArgumentError("bad");
  data_.head.diagnostics = bad;
  const absl::Status status = Create(Request(1)).status();
  EXPECT_EQ(ErrorReason(status), "DATASET_INVALID");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("train.jsonl, line 12, column 3")));
  data_.head = {};
  data_.whole.status = absl::InvalidArgumentError("bad");
  data_.whole.diagnostics = bad;
  const std::string name = MustCreate(1);
  Watch(name, 0, false);  // until the end
  const v1::Job job = Get(name);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.failure().cause(), v1::FAILURE_CAUSE_USER);
  EXPECT_THAT(job.failure().status().message(), HasSubstr("line 12"));
}

TEST_F(ApiTest, AWatchGoesOnAfterASequenceWithoutLossOrRepetition) {
  AddWorkers(1);
  for (int second = 0; second < 11; ++second) {
    clock_.Advance(absl::Seconds(1));
    SyncAll();
  }
  const std::string name = MustCreate(1);
  std::vector<v1::WatchJobResponse> live;
  std::thread watcher([&] { live = Watch(name, 0, false); });
  EXPECT_TRUE(SyncUntilState(name, v1::JOB_STATE_SUCCEEDED));
  watcher.join();
  ASSERT_FALSE(live.empty());
  EXPECT_TRUE(live[0].has_snapshot());
  std::vector<int64_t> all;
  for (const auto& message : live) {
    if (message.has_event()) all.push_back(message.event().sequence());
  }
  EXPECT_EQ(live.back().event().data().at("to"), "SUCCEEDED");
  EXPECT_EQ(all.back(), Get(name).last_sequence());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto rest = Watch(name, all[i], true);
    ASSERT_EQ(rest.size(), all.size() - i - 1);
    for (size_t j = 0; j < rest.size(); ++j) {
      EXPECT_EQ(rest[j].event().sequence(), all[i + 1 + j]);
    }
  }
}

TEST_F(ApiTest, AWatchEndsWithUnavailableAtShutdownAndNotFoundForNothing) {
  absl::Status end;
  Watch("jobs/none", 0, false, &end);
  EXPECT_EQ(ErrorReason(end), "JOB_NOT_FOUND");
  const std::string name = MustCreate(1);
  std::thread watcher([&] { Watch(name, 0, false, &end); });
  // Its first message shows that the watch is there.
  while (metrics_.Text().find("VALIDATED") == std::string::npos &&
         Get(name).state() == v1::JOB_STATE_VALIDATING) {
  }
  server_->Shutdown(absl::Seconds(5));
  watcher.join();
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(ApiTest, CancelRespectsTheEtagAndTheEnd) {
  const std::string name = MustCreate(1);
  EXPECT_EQ(ErrorReason(Cancel(name, "stale").status()), "ETAG_MISMATCH");
  ASSERT_OK_AND_ASSIGN(const auto response, Cancel(name));
  EXPECT_EQ(response.job().state(), v1::JOB_STATE_CANCELLED);
  const auto history = Watch(name, 0, true);
  EXPECT_EQ(history.back().event().data().at("to"), "CANCELLED");
  EXPECT_EQ(ErrorReason(Cancel("jobs/none").status()), "JOB_NOT_FOUND");
  data_.whole.status = absl::InvalidArgumentError("bad");
  auto* item = data_.whole.diagnostics.add_items();
  item->set_severity(v1::Diagnostic::SEVERITY_ERROR);
  const std::string failed = MustCreate(1);
  Watch(failed, 0, false);
  EXPECT_EQ(ErrorReason(Cancel(failed).status()), "JOB_STATE");
}

TEST_F(ApiTest, WorkersAreListedInPages) {
  AddWorkers(3);
  SyncAll();
  v1::ListWorkersRequest request;
  request.set_page_size(2);
  v1::ListWorkersResponse response;
  {
    grpc::ClientContext context;
    ASSERT_OK(
        FromGrpcStatus(admin_->ListWorkers(&context, request, &response)));
  }
  ASSERT_EQ(response.workers_size(), 2);
  EXPECT_EQ(response.workers(0).name(), "workers/host.0");
  EXPECT_EQ(response.workers(0).state(), v1::Worker::STATE_IDLE);
  EXPECT_EQ(response.workers(0).rank(), -1);
  request.set_page_token(response.next_page_token());
  grpc::ClientContext context;
  ASSERT_OK(FromGrpcStatus(admin_->ListWorkers(&context, request, &response)));
  ASSERT_EQ(response.workers_size(), 1);
  EXPECT_EQ(response.next_page_token(), "");
}

TEST_F(ApiTest, WorkersOfOtherProtocolsOrClustersAreRefused) {
  FakeWorker worker("host.0", "one");
  worker.mutable_state().set_protocol_version(99);
  EXPECT_EQ(ErrorReason(worker.Sync(sync_.get())), "PROTOCOL_VERSION");
  worker.mutable_state().set_protocol_version(1);
  worker.mutable_state().set_cluster_uuid("other");
  EXPECT_EQ(ErrorReason(worker.Sync(sync_.get())), "CLUSTER_MISMATCH");
}

TEST_F(ApiTest, HealthIsServed) {
  ASSERT_OK_AND_ASSIGN(auto channel, OpenChannel({.address = server_->address(),
                                                  .insecure = true}));
  EXPECT_OK(CheckHealth(channel, kLiveService, absl::Seconds(10)));
  EXPECT_OK(CheckHealth(channel, kReadyService, absl::Seconds(10)));
}

TEST_F(ApiTest, MetricsCountWhatHappened) {
  const std::string name = MustCreate(1);
  ASSERT_OK(Cancel(name));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("cadre_jobs_created_total{result=\"ok\"} 1"));
  EXPECT_THAT(text, HasSubstr("cadre_jobs{state=\"CANCELLED\"} 1"));
  EXPECT_THAT(text, HasSubstr("cadre_grpc_requests_total{code=\"OK\","
                              "method=\"CreateJob\"} 1"));
  EXPECT_THAT(text, HasSubstr("cadre_coordinator_generation 1"));
}

TEST_F(ApiTest, AnAddressInUseIsNamedWithTheRemedy) {
  ServerOptions options{.metrics = &metrics_, .data = &data_};
  options.config.set_state_dir(dir_ + "/other");
  options.config.set_insecure(true);
  options.config.set_listen(server_->address());
  EXPECT_THAT(Server::Start(options).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(server_->address()), HasSubstr("in use"),
                             HasSubstr("--listen"))));
}

TEST(CheckConfig, RefusesPlaintextOffLoopbackAndAWrongTimeoutOrder) {
  config::v1::CoordinatorConfig config;
  EXPECT_THAT(
      Server::CheckConfig(config),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("state_dir")));
  config.set_state_dir("s");
  EXPECT_THAT(
      Server::CheckConfig(config),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--insecure")));
  config.set_insecure(true);
  EXPECT_OK(Server::CheckConfig(config));
  config.set_listen("0.0.0.0:1");
  EXPECT_THAT(
      Server::CheckConfig(config),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("loopback")));
  config.clear_listen();
  config.mutable_timeouts()->set_lease_ttl("5s");
  EXPECT_THAT(
      Server::CheckConfig(config),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lease_ttl")));
}

}  // namespace
}  // namespace cadre::coordinator
