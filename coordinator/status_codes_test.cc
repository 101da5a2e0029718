// Every status code, and every reason, that a comment in proto/cadre/v1
// promises is answered by a real server: a promise that no case keeps fails the
// test, and so does a case that no comment promises.

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/rpc/error.h"
#include "coordinator/proto_codes.h"
#include "coordinator/server_fixture.h"
#include "coordinator/uneven_loads.h"

namespace cadre::coordinator {
namespace {

using Jobs = v1::JobService::Stub;
using Admin = v1::AdminService::Stub;
namespace fs = std::filesystem;

// What cannot be caused here.
const std::set<std::string>& Exempt() {
  static const auto* const kExempt = new std::set<std::string>{
      // A file system of its own would have to be filled.
      "BackupState RESOURCE_EXHAUSTED",
      // tests/fault cuts real workers off; CommonCodes has both for Sync.
      "Sync UNAVAILABLE", "Sync DEADLINE_EXCEEDED"};
  return *kExempt;
}

class StatusCodesTest : public ServerFixture {
 protected:
  // Notes what a call was answered with.
  void Saw(const std::string& method, const absl::Status& status) {
    EXPECT_FALSE(status.ok()) << method;
    const std::string code = absl::StatusCodeToString(status.code());
    seen_.insert(absl::StrCat(method, " ", code));
    const std::string reason = ErrorReason(status);
    if (!reason.empty() && reason != code) {
      seen_.insert(absl::StrCat(method, " ", code, " ", reason));
    }
  }
  template <typename Request, typename Response>
  void Try(grpc::Status (Jobs::*method)(grpc::ClientContext*, const Request&,
                                        Response*),
           const char* name, const Request& request) {
    Saw(name, Call(jobs_, method, request).status());
  }
  template <typename Request, typename Response>
  void Try(grpc::Status (Admin::*method)(grpc::ClientContext*, const Request&,
                                         Response*),
           const char* name, const Request& request) {
    Saw(name, Call(admin_, method, request).status());
  }

  absl::Status Download(const std::string& name, const std::string& file,
                        int64_t offset = 0) {
    grpc::ClientContext context;
    v1::DownloadArtifactRequest request;
    request.set_name(name);
    request.set_file(file);
    request.set_offset(offset);
    auto reader = jobs_->DownloadArtifact(&context, request);
    v1::DownloadArtifactResponse part;
    while (reader->Read(&part)) {
    }
    return FromGrpcStatus(reader->Finish());
  }
  absl::Status WatchFrom(const std::string& name, int64_t after) {
    absl::Status end;
    Watch(name, after, true, &end);
    return end;
  }

  std::string EndedJob(const std::string& id) {
    auto request = Request(1, 8);
    request.set_job_id(id);
    EXPECT_OK(Create(request));
    EXPECT_TRUE(SyncUntilState("jobs/" + id, v1::JOB_STATE_SUCCEEDED));
    return "jobs/" + id;
  }

  void CreateAndPlan();
  void Verbs();
  void Reads();
  void Downloads();
  void Streams();
  void Workers();
  void Experts();

  std::set<std::string> seen_;
};

void StatusCodesTest::CreateAndPlan() {
  auto request = Request(1);
  request.set_job_id("taken");
  ASSERT_OK(Create(request));
  auto other = request;
  other.set_base_dir("/elsewhere");
  Saw("CreateJob", Create(other).status());  // REQUEST_ID_REUSED
  other = Request(1);
  other.set_job_id("taken");
  Saw("CreateJob", Create(other).status());
  other = Request(1);
  other.clear_request_id();
  Saw("CreateJob", Create(other).status());
  other = Request(1);
  other.set_job_yaml(other.job_yaml() + "nonsense: 1\n");
  Saw("CreateJob", Create(other).status());
  other = Request(1);
  other.set_job_yaml(other.job_yaml() + "  min_device_memory_bytes: 64KiB\n");
  Saw("CreateJob", Create(other).status());  // PLAN_IMPOSSIBLE
  v1::PlanJobRequest plan;
  Try(&Jobs::PlanJob, "PlanJob", plan);
  plan.set_job_yaml(Request(1).job_yaml());
  plan.set_base_dir(dir_);
  plan.set_sample_dataset(true);
  data_.head.status = absl::InvalidArgumentError("bad");
  Saw("CreateJob", Create(Request(1)).status());  // DATASET_INVALID
  Try(&Jobs::PlanJob, "PlanJob", plan);
  data_.head.status = absl::OkStatus();
  ASSERT_OK(Create(Request(1)));
  Saw("CreateJob", Create(Request(1)).status());  // QUOTA_QUEUED_JOBS
  configure = [](config::v1::CoordinatorConfig* config) {
    config->set_ballast_bytes(int64_t{1} << 60);  // more than any disk has
  };
  RestartServer(false);
  Saw("CreateJob", Create(Request(1)).status());
  configure = [](config::v1::CoordinatorConfig*) {};
  RestartServer(false);
}

void StatusCodesTest::Verbs() {
  const auto verb = [this](auto method, const char* name, auto request) {
    request.set_name("jobs/none");
    Try(method, name, request);
    request.set_name("jobs/taken");
    request.set_etag("old");
    Try(method, name, request);
  };
  verb(&Jobs::CancelJob, "CancelJob", v1::CancelJobRequest());
  verb(&Jobs::PauseJob, "PauseJob", v1::PauseJobRequest());
  verb(&Jobs::ResumeJob, "ResumeJob", v1::ResumeJobRequest());
  verb(&Jobs::DeleteJob, "DeleteJob", v1::DeleteJobRequest());
  // In a state that does not allow it.
  v1::DeleteJobRequest remove;
  remove.set_name("jobs/taken");
  Try(&Jobs::DeleteJob, "DeleteJob", remove);
  AddWorkers(1);
  workers_[0]->writes_files = true;
  const std::string ended = EndedJob("ended");
  const auto late = [&](auto method, const char* name, auto request) {
    request.set_name(ended);
    Try(method, name, request);
  };
  late(&Jobs::CancelJob, "CancelJob", v1::CancelJobRequest());
  late(&Jobs::PauseJob, "PauseJob", v1::PauseJobRequest());
  late(&Jobs::ResumeJob, "ResumeJob", v1::ResumeJobRequest());
  v1::RebalanceExpertsRequest move;
  move.set_name("jobs/none");
  Try(&Jobs::RebalanceExperts, "RebalanceExperts", move);
  late(&Jobs::RebalanceExperts, "RebalanceExperts", move);
  auto next = Request(6);
  std::string yaml = next.job_yaml();
  yaml.replace(yaml.find("checkpoint:\n"), 12,
               "checkpoint:\n  resume_from: jobs/ended/checkpoints/8\n");
  next.set_job_yaml(yaml);
  ASSERT_OK(Create(next));
  remove.set_name(ended);
  remove.set_purge_artifacts(true);
  Try(&Jobs::DeleteJob, "DeleteJob", remove);
}

void StatusCodesTest::Reads() {
  const auto missing = [this](auto method, const char* name, auto request) {
    request.set_name("jobs/none");
    Try(method, name, request);
  };
  missing(&Jobs::GetJob, "GetJob", v1::GetJobRequest());
  missing(&Jobs::GetPlan, "GetPlan", v1::GetPlanRequest());
  missing(&Jobs::GetMetrics, "GetMetrics", v1::GetMetricsRequest());
  v1::GetMetricsRequest metrics;
  metrics.set_name("jobs/taken");
  metrics.set_start_step(-1);
  Try(&Jobs::GetMetrics, "GetMetrics", metrics);
  v1::ListCheckpointsRequest checkpoints;
  checkpoints.set_parent("jobs/none");
  Try(&Jobs::ListCheckpoints, "ListCheckpoints", checkpoints);
  checkpoints.set_parent("jobs/taken");
  checkpoints.set_page_token("x");
  Try(&Jobs::ListCheckpoints, "ListCheckpoints", checkpoints);
  v1::ListArtifactsRequest artifacts;
  artifacts.set_parent("jobs/none");
  Try(&Jobs::ListArtifacts, "ListArtifacts", artifacts);
  v1::ListJobsRequest list;
  list.set_filter("x");
  Try(&Jobs::ListJobs, "ListJobs", list);
  list.set_filter("");
  list.set_order_by("x");
  Try(&Jobs::ListJobs, "ListJobs", list);
  list.set_order_by("");
  list.set_page_token("x");
  Try(&Jobs::ListJobs, "ListJobs", list);
}

void StatusCodesTest::Downloads() {
  Saw("DownloadArtifact", Download("jobs/none/artifacts/adapter", ""));
  const std::string adapter = "jobs/ended/artifacts/adapter";
  const std::string file = "part/data.bin";
  Saw("DownloadArtifact", Download(adapter, file, 1 << 30));
  std::ofstream(dir_ + "/state/outputs/ended/" + file) << "damaged";
  Saw("DownloadArtifact", Download(adapter, file));
  fs::remove_all(dir_ + "/state/outputs/ended");
  Saw("DownloadArtifact", Download(adapter, file));
  workers_[0]->claimed_bytes = int64_t{17} << 30;
  Saw("DownloadArtifact",
      Download(EndedJob("large") + "/artifacts/adapter", file));
  // Readers that do not read: each holds its stream open.
  workers_[0]->claimed_bytes = 0;
  workers_[0]->content.assign(64 << 20, 'x');
  const std::string slow = EndedJob("slow") + "/artifacts/adapter";
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::DownloadArtifactResponse>>>
      readers;
  v1::DownloadArtifactRequest request;
  request.set_name(slow);
  request.set_file(file);
  for (int i = 0; i < 32; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(jobs_->DownloadArtifact(contexts.back().get(), request));
    // Once the listing is here the stream counts.
    v1::DownloadArtifactResponse part;
    ASSERT_TRUE(readers.back()->Read(&part));
  }
  Saw("DownloadArtifact", Download(slow, file));
  for (size_t i = 0; i < readers.size(); ++i) {
    contexts[i]->TryCancel();
    v1::DownloadArtifactResponse part;
    while (readers[i]->Read(&part)) {
    }
    readers[i]->Finish();
  }
}

void StatusCodesTest::Streams() {
  Saw("WatchJob", WatchFrom("jobs/none", 0));
  const std::string waiting = MustCreate(12);
  configure = [](config::v1::CoordinatorConfig* config) {
    config->mutable_retention()->set_events(2);
  };
  RestartServer(false);
  clock_.Advance(absl::Hours(1));
  absl::Status end;
  ASSERT_TRUE(
      SyncUntil([&] { return !(end = WatchFrom("jobs/ended", 1)).ok(); }));
  Saw("WatchJob", end);
  // A watch that is open while the server goes.
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_name(waiting);
  auto reader = jobs_->WatchJob(&context, request);
  v1::WatchJobResponse item;
  ASSERT_TRUE(reader->Read(&item));
  server_->Shutdown(absl::Seconds(5));
  while (reader->Read(&item)) {
  }
  Saw("WatchJob", FromGrpcStatus(reader->Finish()));
  configure = [](config::v1::CoordinatorConfig*) {};
  RestartServer(false);
}

void StatusCodesTest::Workers() {
  v1::ListWorkersRequest list;
  list.set_page_token("x");
  Try(&Admin::ListWorkers, "ListWorkers", list);
  const auto missing = [this](auto method, const char* name, auto request) {
    request.set_name("workers/none");
    Try(method, name, request);
  };
  missing(&Admin::Cordon, "Cordon", v1::CordonRequest());
  missing(&Admin::Uncordon, "Uncordon", v1::UncordonRequest());
  missing(&Admin::Drain, "Drain", v1::DrainRequest());
  v1::GetExpertLoadsRequest loads;
  loads.set_job("jobs/none");
  Try(&Admin::GetExpertLoads, "GetExpertLoads", loads);
  loads.set_job(MustCreate(6));
  Try(&Admin::GetExpertLoads, "GetExpertLoads", loads);
  v1::ListAuditRecordsRequest audit;
  audit.set_page_token("x");
  Try(&Admin::ListAuditRecords, "ListAuditRecords", audit);
  Try(&Admin::PurgeJobs, "PurgeJobs", v1::PurgeJobsRequest());
  FakeWorker old("host.8", "x");
  old.mutable_state().set_protocol_version(99);
  Saw("Sync", old.Sync(sync_.get()));
  FakeWorker foreign("host.9", "x");
  foreign.mutable_state().set_cluster_uuid("another");
  Saw("Sync", foreign.Sync(sync_.get()));
}

void StatusCodesTest::Experts() {
  v1::ListJobsRequest list;
  list.set_page_size(1000);
  ASSERT_OK_AND_ASSIGN(const auto before, Call(jobs_, &Jobs::ListJobs, list));
  for (const v1::Job& job : before.jobs()) {
    if (IsTerminal(job.state())) continue;
    ASSERT_OK(Cancel(job.name()).status());
  }
  AddWorkers(1);
  for (const auto& worker : workers_) {
    worker->content = "small";
    worker->values = false;
    worker->hold_at_step = 1;
    worker->expert_loads = [](int64_t step) { return UnevenLoads(step, step); };
  }
  v1::RebalanceExpertsRequest move;
  const auto start = [&](const std::string& more) {
    auto request = Request(2, 40);
    request.set_job_yaml(request.job_yaml() + more);
    const auto created = Create(request);
    ASSERT_OK(created);
    move.set_name(created->job().name());
    ASSERT_TRUE(SyncUntilState(move.name(), v1::JOB_STATE_RUNNING));
    Try(&Jobs::RebalanceExperts, "RebalanceExperts", move);
  };
  start("");  // each rank has all experts
  ASSERT_OK(Cancel(move.name()).status());
  ASSERT_TRUE(SyncUntilState(move.name(), v1::JOB_STATE_CANCELLED));
  start(
      "parallelism:\n  expert_parallel_size: 2\nmoe:\n"
      "  spare_slots_per_rank: 1\n  rebalance_every: 1\n  rebalance: off\n");
  for (const auto& worker : workers_) {
    worker->values = true;
    worker->hold_at_step = 3;
  }
  ASSERT_TRUE(
      SyncUntil([&] { return Call(jobs_, &Jobs::RebalanceExperts, move).ok(); },
                "an order"));
  Try(&Jobs::RebalanceExperts, "RebalanceExperts", move);
}

TEST_F(StatusCodesTest, EveryPromiseOfTheCommentsIsKept) {
  configure = [](config::v1::CoordinatorConfig* config) {
    config->set_max_queued_jobs(2);
  };
  RestartServer(false);
  CreateAndPlan();
  Verbs();
  Reads();
  Downloads();
  Workers();
  Streams();
  Experts();
  if (HasFatalFailure()) return;
  std::set<std::string> promised;
  for (const char* file : {"job_service", "admin_service", "worker_service"}) {
    ASSERT_OK_AND_ASSIGN(
        const std::string text,
        ReadFile(absl::StrCat("proto/cadre/v1/", file, ".proto")));
    for (const auto& [method, codes] : DocumentedCodes(text)) {
      for (const std::string& code : codes) {
        promised.insert(absl::StrCat(method, " ", code));
      }
    }
  }
  EXPECT_GT(promised.size(), 60u);
  for (const std::string& promise : promised) {
    // Whose: CommonCodes.
    if (Exempt().contains(promise) || promise == "Sync PERMISSION_DENIED") {
      continue;
    }
    EXPECT_TRUE(seen_.contains(promise)) << "no case answers " << promise;
  }
  for (const std::string& code : seen_) {
    const bool with_reason = std::count(code.begin(), code.end(), ' ') > 1;
    EXPECT_TRUE(with_reason || promised.contains(code))
        << "no comment promises " << code;
  }
}

// The codes of the head of job_service.proto, on every method of every service.
class CommonCodesTest : public ServerFixture {
 protected:
  void SetUp() override {
    configure = [this](config::v1::CoordinatorConfig* config) {
      const auto digest = [](const std::string& text) {
        std::string out(SHA256_DIGEST_LENGTH, '\0');
        SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
               reinterpret_cast<unsigned char*>(out.data()));
        return absl::BytesToHexString(out);
      };
      const std::string file = dir_ + "/access";
      ASSERT_OK(WriteFileAtomic(
          file,
          absl::StrCat("tokens { name: 'v' role: ROLE_VIEWER sha256: '",
                       digest("v"), "' }\n",
                       "tokens { name: 'a' role: ROLE_ADMIN sha256: '",
                       digest("a"), "' }\n",
                       "tokens { name: 'host' role: ROLE_WORKER sha256: '",
                       digest("host"), "' }\n")));
      config->set_access_file(file);
      config->set_rate_burst(1);
    };
    ServerFixture::SetUp();
  }

  std::shared_ptr<grpc::Channel> As(const std::string& token) {
    ChannelOptions options{.address = server_->address(), .insecure = true};
    if (!token.empty()) {
      options.token_file = absl::StrCat(dir_, "/token-", token);
      EXPECT_OK(WriteFileAtomic(options.token_file, token + "\n"));
    }
    auto channel = OpenChannel(options);
    EXPECT_OK(channel);
    return channel.ok() ? *channel : nullptr;
  }

  // An empty request to any method, as bytes.
  static absl::Status Send(const std::shared_ptr<grpc::Channel>& channel,
                           const std::string& method,
                           absl::Duration timeout = absl::Seconds(60)) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    grpc::CompletionQueue queue;
    void* tag = nullptr;
    bool ok = false;
    auto call = stub.PrepareCall(&context, method, &queue);
    const auto wait = [&] { return queue.Next(&tag, &ok) && ok; };
    grpc::Status status;
    call->StartCall(nullptr);
    const grpc::Slice empty("");
    if (wait()) {
      call->WriteLast(grpc::ByteBuffer(&empty, 1), grpc::WriteOptions(),
                      nullptr);
      wait();
    }
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    return FromGrpcStatus(status);
  }

  static std::vector<std::string> Methods() {
    std::vector<std::string> methods;
    for (const auto* service : {v1::JobService::service_full_name(),
                                v1::AdminService::service_full_name(),
                                v1::WorkerService::service_full_name()}) {
      const auto* descriptor =
          google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
              service);
      for (int i = 0; i < descriptor->method_count(); ++i) {
        methods.push_back(
            absl::StrCat("/", service, "/", descriptor->method(i)->name()));
      }
    }
    return methods;
  }
};

TEST_F(CommonCodesTest, OnEveryMethod) {
  const auto nobody = As(""), viewer = As("v"), admin = As("a"),
             worker = As("host");
  for (const std::string& method : Methods()) {
    EXPECT_EQ(ErrorReason(Send(nobody, method)), "TOKEN_MISSING") << method;
    const bool sync = method.find("/Sync") != std::string::npos;
    EXPECT_EQ(ErrorReason(Send(sync ? admin : worker, method)), "ROLE_REQUIRED")
        << method;
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(Send(admin, method, -absl::Seconds(1))))
        << method;
    if (sync) continue;
    // The burst is one call, and the clock stands still.
    absl::Status limited = Send(admin, method);
    for (int i = 0; i < 3 && ErrorReason(limited) != "RATE_LIMITED"; ++i) {
      limited = Send(admin, method);
    }
    EXPECT_EQ(ErrorReason(limited), "RATE_LIMITED") << method;
  }
  FakeWorker liar("elsewhere.0", "x");
  const auto stub = v1::WorkerService::NewStub(worker);
  EXPECT_TRUE(absl::IsPermissionDenied(liar.Sync(stub.get())));
  // Nobody listens any more; the same for all, so one will do.
  server_->Shutdown(absl::Seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(Send(admin, Methods()[0])));
}

TEST(DocumentedCodes, AreReadFromTheComments) {
  const auto codes = DocumentedCodes(R"(
// NOT_FOUND at the head does not count.
service S {
  // Says OK. NOT_FOUND: no retry. OUT_OF_RANGE (SEQUENCE_TRIMMED): and
  // more.
  rpc A(X) returns (Y);
  // Codes as for A; ABORTED.
  rpc B(X) returns (Y);
}
)");
  EXPECT_EQ(codes.at("A"),
            (std::set<std::string>{"NOT_FOUND", "OUT_OF_RANGE",
                                   "OUT_OF_RANGE SEQUENCE_TRIMMED"}));
  EXPECT_EQ(codes.at("B").size(), 4u);
}

}  // namespace
}  // namespace cadre::coordinator
