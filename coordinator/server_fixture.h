#ifndef CADRE_COORDINATOR_SERVER_FIXTURE_H_
#define CADRE_COORDINATOR_SERVER_FIXTURE_H_

// A real server on port 0 with scripted workers, for tests. The clock stands
// still unless a test moves it.

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/rpc/channel.h"
#include "base/rpc/grpc_status.h"
#include "base/status_matchers.h"
#include "cadre/v1/admin_service.grpc.pb.h"
#include "cadre/v1/job_service.grpc.pb.h"
#include "coordinator/fake_worker.h"
#include "coordinator/job.h"
#include "coordinator/server.h"

namespace cadre::coordinator {

// Finds every data set good, or whatever a test says.
class FakeDataChecker final : public DataChecker {
 public:
  DataVerdict CheckHead(const v1::JobSpec&) override { return head; }
  DataVerdict CheckWhole(const v1::JobSpec&,
                         const std::atomic<bool>*) override {
    DataVerdict verdict = whole;
    verdict.rows = 24;
    verdict.stats.set_records(100);
    return verdict;
  }
  DataVerdict head, whole;
};

class ServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    ASSERT_OK(WriteFileAtomic(absl::StrCat(dir_, "/config.json"), kConfig));
    // Only its presence matters: the data checker is a fake.
    ASSERT_OK(WriteFileAtomic(absl::StrCat(dir_, "/tokenizer.json"), "{}"));
    StartServer();
  }

  void StartServer() {
    ServerOptions options{.metrics = &metrics_,
                          .data = &data_,
                          .clock = &clock_,
                          .ids = &ids_,
                          .tick_interval = absl::Milliseconds(2)};
    options.config.set_state_dir(absl::StrCat(dir_, "/state"));
    options.config.set_listen("127.0.0.1:0");
    options.config.set_insecure(true);
    options.config.set_ballast_bytes(-1);
    options.config.mutable_backups()->set_every("0");
    configure(&options.config);
    auto server = Server::Start(options);
    ASSERT_OK(server);
    server_ = std::make_unique<Server>(*std::move(server));
    auto channel =
        OpenChannel({.address = server_->address(), .insecure = true});
    ASSERT_OK(channel);
    jobs_ = v1::JobService::NewStub(*channel);
    admin_ = v1::AdminService::NewStub(*channel);
    sync_ = v1::WorkerService::NewStub(*channel);
  }

  // As after a crash and a new start, but for the clean end of the WAL; the
  // coordinator then lets its workers report for one lease.
  void RestartServer(bool warm_up = true) {
    server_.reset();
    StartServer();
    if (!warm_up) return;
    for (int second = 0; second < 11; ++second) {
      clock_.Advance(absl::Seconds(1));
      SyncAll();
    }
  }

  v1::CreateJobRequest Request(int workers, int64_t steps = 10) {
    v1::CreateJobRequest request;
    request.set_request_id(
        absl::StrFormat("00000000-0000-4000-8000-%012d", ++next_request_));
    request.set_base_dir(dir_);
    request.set_job_yaml(absl::StrFormat(R"(version: 1
model:
  config: config.json
  init: random
  tokenizer: .
data:
  train: [train.jsonl]
training:
  max_steps: %d
  global_batch_size: 12
checkpoint:
  keep_last: 2
resources:
  workers: %d
  backend: cpu
)",
                                         steps, workers));
    return request;
  }

  absl::StatusOr<v1::CreateJobResponse> Create(
      const v1::CreateJobRequest& request) {
    grpc::ClientContext context;
    v1::CreateJobResponse response;
    const absl::Status status =
        FromGrpcStatus(jobs_->CreateJob(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  // Creates a job and returns its name.
  std::string MustCreate(int workers, int64_t steps = 10) {
    auto response = Create(Request(workers, steps));
    EXPECT_OK(response);
    return response.ok() ? response->job().name() : "";
  }

  v1::Job Get(const std::string& name) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    request.set_view(v1::JOB_VIEW_FULL);
    v1::GetJobResponse response;
    EXPECT_OK(FromGrpcStatus(jobs_->GetJob(&context, request, &response)));
    return response.job();
  }

  absl::StatusOr<v1::CancelJobResponse> Cancel(const std::string& name,
                                               const std::string& etag = "") {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_name(name);
    request.set_etag(etag);
    request.set_reason("test");
    v1::CancelJobResponse response;
    const absl::Status status =
        FromGrpcStatus(jobs_->CancelJob(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  // Any other unary call.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      const std::unique_ptr<Stub>& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) {
    grpc::ClientContext context;
    Response response;
    const absl::Status status =
        FromGrpcStatus(((*stub).*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  std::vector<v1::WatchJobResponse> Watch(const std::string& name,
                                          int64_t after, bool history_only,
                                          absl::Status* end = nullptr) {
    grpc::ClientContext context;
    v1::WatchJobRequest request;
    request.set_name(name);
    request.set_after_sequence(after);
    request.set_history_only(history_only);
    auto reader = jobs_->WatchJob(&context, request);
    std::vector<v1::WatchJobResponse> messages;
    v1::WatchJobResponse message;
    while (reader->Read(&message)) messages.push_back(message);
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (end != nullptr) {
      *end = status;
    } else {
      EXPECT_OK(status);
    }
    return messages;
  }

  void AddWorkers(int count) {
    for (int i = 0; i < count; ++i) {
      workers_.push_back(std::make_unique<FakeWorker>(
          absl::StrCat("host.", workers_.size()),
          absl::StrCat("first-", workers_.size())));
    }
  }
  void SyncAll() {
    for (const auto& worker : workers_) {
      if (worker == nullptr) continue;
      EXPECT_OK(worker->Sync(sync_.get()));
    }
  }
  // Lets the workers call until the condition holds. The limit is generous: on
  // a shared disk a single fsync may take tens of seconds.
  ::testing::AssertionResult SyncUntil(const std::function<bool()>& condition,
                                       const std::string& what = "condition") {
    const absl::Time deadline = absl::Now() + absl::Seconds(100);
    while (absl::Now() < deadline) {
      if (condition()) return ::testing::AssertionSuccess();
      SyncAll();
      if (::testing::Test::HasFailure()) break;
    }
    return ::testing::AssertionFailure() << what << " never came";
  }
  ::testing::AssertionResult SyncUntilState(const std::string& name,
                                            v1::JobState state) {
    auto result =
        SyncUntil([&] { return Get(name).state() == state; }, StateName(state));
    if (!result) result << "; " << Get(name).DebugString();
    return result;
  }

  // For tests that want more of the configuration.
  std::function<void(config::v1::CoordinatorConfig*)> configure =
      [](config::v1::CoordinatorConfig*) {};

  static constexpr char kConfig[] = R"({
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
  "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
  "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
  "vocab_size": 128, "max_position_embeddings": 8192,
  "tie_word_embeddings": false, "attention_bias": false,
  "router_aux_loss_coef": 0.001})";

  std::string dir_;
  FakeClock clock_;
  FakeIdSource ids_;
  MetricsRegistry metrics_;
  FakeDataChecker data_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
  std::unique_ptr<v1::WorkerService::Stub> sync_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  int next_request_ = 0;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SERVER_FIXTURE_H_
