#include "client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/rpc/channel.h"
#include "base/rpc/grpc_status.h"
#include "base/status_macros.h"
#include "cadre/v1/admin_service.grpc.pb.h"
#include "cadre/v1/job_service.grpc.pb.h"

namespace cadre::client {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(200);
constexpr absl::Duration kLongestPause = absl::Seconds(5);

}  // namespace

struct JobClient::Impl {
  Impl(JobClientOptions o, const std::shared_ptr<grpc::Channel>& channel)
      : options(std::move(o)),
        jobs(v1::JobService::NewStub(channel)),
        admin(v1::AdminService::NewStub(channel)) {}

  // One unary call under the client's deadline, repeated while the server is
  // unavailable and time is left.
  template <typename Call>
  absl::Status Unary(Call call) {
    const absl::Time deadline = absl::Now() + options.timeout;
    absl::Duration pause = kFirstPause;
    for (;;) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      const absl::Status status = FromGrpcStatus(call(&context));
      if (status.code() == absl::StatusCode::kUnavailable &&
          absl::Now() + pause < deadline) {
        absl::SleepFor(pause);
        pause = std::min(2 * pause, kLongestPause);
        continue;
      }
      if (status.code() == absl::StatusCode::kUnavailable ||
          status.code() == absl::StatusCode::kDeadlineExceeded) {
        return Annotate(
            status,
            absl::StrCat("no answer from the coordinator at ", options.address,
                         " (is it running? --address or CADRE_ADDRESS names "
                         "another)"));
      }
      return status;
    }
  }

  JobClientOptions options;
  std::unique_ptr<v1::JobService::Stub> jobs;
  std::unique_ptr<v1::AdminService::Stub> admin;

  std::mutex mutex;
  bool interrupted = false;                // guarded by mutex
  std::set<grpc::ClientContext*> watches;  // guarded by mutex
};

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(
    JobClientOptions options) {
  // Plaintext is accepted on loopback addresses only.
  CADRE_ASSIGN_OR_RETURN(
      std::shared_ptr<grpc::Channel> channel,
      OpenChannel({.address = options.address, .insecure = true}));
  return std::unique_ptr<JobClient>(
      new JobClient(std::make_unique<Impl>(std::move(options), channel)));
}

JobClient::JobClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobClient::~JobClient() = default;

absl::StatusOr<v1::CreateJobResponse> JobClient::Create(
    v1::CreateJobRequest request) {
  if (request.request_id().empty()) request.set_request_id(NewUuid());
  v1::CreateJobResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Unary([&](grpc::ClientContext* context) {
    return impl_->jobs->CreateJob(context, request, &response);
  }));
  return response;
}

absl::StatusOr<v1::Job> JobClient::Get(const std::string& job,
                                       v1::JobView view) {
  v1::GetJobRequest request;
  request.set_name(JobName(job));
  request.set_view(view);
  v1::GetJobResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Unary([&](grpc::ClientContext* context) {
    return impl_->jobs->GetJob(context, request, &response);
  }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<std::vector<v1::Job>> JobClient::List(const std::string& filter,
                                                     int limit) {
  std::vector<v1::Job> jobs;
  std::string token;
  do {
    v1::ListJobsRequest request;
    request.set_filter(filter);
    request.set_page_token(token);
    request.set_page_size(
        std::min(limit - static_cast<int>(jobs.size()), 1000));
    v1::ListJobsResponse response;
    CADRE_RETURN_IF_ERROR(impl_->Unary([&](grpc::ClientContext* context) {
      return impl_->jobs->ListJobs(context, request, &response);
    }));
    for (auto& job : *response.mutable_jobs()) jobs.push_back(std::move(job));
    token = response.next_page_token();
  } while (!token.empty() && static_cast<int>(jobs.size()) < limit);
  return jobs;
}

absl::StatusOr<v1::Job> JobClient::Cancel(const std::string& job,
                                          const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_name(JobName(job));
  request.set_request_id(NewUuid());
  request.set_reason(reason);
  v1::CancelJobResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Unary([&](grpc::ClientContext* context) {
    return impl_->jobs->CancelJob(context, request, &response);
  }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<std::vector<v1::Worker>> JobClient::ListWorkers() {
  std::vector<v1::Worker> workers;
  std::string token;
  do {
    v1::ListWorkersRequest request;
    request.set_page_size(1000);
    request.set_page_token(token);
    v1::ListWorkersResponse response;
    CADRE_RETURN_IF_ERROR(impl_->Unary([&](grpc::ClientContext* context) {
      return impl_->admin->ListWorkers(context, request, &response);
    }));
    for (auto& w : *response.mutable_workers()) workers.push_back(std::move(w));
    token = response.next_page_token();
  } while (!token.empty());
  return workers;
}

absl::Status JobClient::Watch(const WatchOptions& options) {
  v1::WatchJobRequest request;
  request.set_name(JobName(options.job));
  request.set_history_only(options.history_only);
  int64_t sequence = options.after_sequence;
  absl::Time last_contact = absl::Now();
  absl::Duration pause = kFirstPause;
  for (bool lost = false;;) {
    request.set_after_sequence(sequence);
    grpc::ClientContext context;
    {
      std::lock_guard<std::mutex> lock(impl_->mutex);
      if (impl_->interrupted) return absl::CancelledError("interrupted");
      impl_->watches.insert(&context);
    }
    auto reader = impl_->jobs->WatchJob(&context, request);
    v1::WatchJobResponse item;
    while (reader->Read(&item)) {
      lost = false;
      last_contact = absl::Now();
      pause = kFirstPause;
      if (item.has_event()) sequence = item.event().sequence();
      options.on_item(item);
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    {
      std::lock_guard<std::mutex> lock(impl_->mutex);
      impl_->watches.erase(&context);
      if (impl_->interrupted) return absl::CancelledError("interrupted");
    }
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    if (absl::Now() - last_contact > impl_->options.reconnect_limit) {
      return Annotate(status, absl::StrCat("lost the coordinator at ",
                                           impl_->options.address));
    }
    if (!lost && options.on_reconnect) options.on_reconnect(status);
    lost = true;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

void JobClient::Interrupt() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->interrupted = true;
  for (grpc::ClientContext* context : impl_->watches) context->TryCancel();
}

std::string JobName(const std::string& job) {
  return absl::StartsWith(job, "jobs/") ? job : absl::StrCat("jobs/", job);
}

std::string JobId(const std::string& name) {
  return absl::StartsWith(name, "jobs/") ? name.substr(5) : name;
}

std::string NewUuid() {
  std::random_device random;
  const auto next = [&] {
    return (static_cast<uint64_t>(random()) << 32) | random();
  };
  const uint64_t high = (next() & ~0xF000ULL) | 0x4000ULL;
  const uint64_t low = (next() & ~(3ULL << 62)) | (2ULL << 62);
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", high >> 32,
                         (high >> 16) & 0xFFFF, high & 0xFFFF, low >> 48,
                         low & 0xFFFFFFFFFFFFULL);
}

}  // namespace cadre::client
