#include "client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/rpc/channel.h"
#include "base/status_macros.h"
#include "client/job_client_impl.h"

namespace cadre::client {

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(
    JobClientOptions options) {
  CADRE_ASSIGN_OR_RETURN(
      std::shared_ptr<grpc::Channel> channel,
      OpenChannel({.address = options.address,
                   .insecure = options.ca_file.empty(),
                   .ca_file = options.ca_file,
                   .certificate_file = options.certificate_file,
                   .key_file = options.key_file,
                   .token_file = options.token_file}));
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

absl::StatusOr<v1::PlanJobResponse> JobClient::PlanJob(
    v1::PlanJobRequest request) {
  return impl_->Call(impl_->jobs, &v1::JobService::Stub::PlanJob, request);
}

absl::StatusOr<std::vector<v1::Job>> JobClient::List(
    const std::string& filter, int limit, const std::string& order_by) {
  std::vector<v1::Job> jobs;
  std::string token;
  do {
    v1::ListJobsRequest request;
    request.set_filter(filter);
    request.set_order_by(order_by);
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
  CADRE_ASSIGN_OR_RETURN(
      v1::CancelJobResponse response,
      impl_->Call(impl_->jobs, &v1::JobService::Stub::CancelJob,
                  Verb<v1::CancelJobRequest>(JobName(job), reason)));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> JobClient::Pause(const std::string& job,
                                         const std::string& reason) {
  CADRE_ASSIGN_OR_RETURN(
      v1::PauseJobResponse response,
      impl_->Call(impl_->jobs, &v1::JobService::Stub::PauseJob,
                  Verb<v1::PauseJobRequest>(JobName(job), reason)));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> JobClient::Resume(const std::string& job,
                                          const std::string& reason,
                                          std::optional<int> priority) {
  auto request = Verb<v1::ResumeJobRequest>(JobName(job), reason);
  if (priority.has_value()) request.set_priority(*priority);
  CADRE_ASSIGN_OR_RETURN(
      v1::ResumeJobResponse response,
      impl_->Call(impl_->jobs, &v1::JobService::Stub::ResumeJob, request));
  return std::move(*response.mutable_job());
}

absl::Status JobClient::Delete(const std::string& job,
                               const std::string& reason,
                               bool purge_artifacts) {
  auto request = Verb<v1::DeleteJobRequest>(JobName(job), reason);
  request.set_purge_artifacts(purge_artifacts);
  return impl_->Call(impl_->jobs, &v1::JobService::Stub::DeleteJob, request)
      .status();
}

absl::StatusOr<v1::DownloadArtifactResponse::Listing> JobClient::Download(
    const DownloadOptions& options) {
  v1::DownloadArtifactRequest request;
  request.set_name(options.name);
  request.set_file(options.file);
  request.set_path_only(options.path_only);
  int64_t offset = options.offset;
  absl::Time last_contact = absl::Now();
  absl::Duration pause = kFirstRetryPause;
  v1::DownloadArtifactResponse::Listing listing;
  for (;;) {
    request.set_offset(offset);
    grpc::ClientContext context;
    auto reader = impl_->jobs->DownloadArtifact(&context, request);
    v1::DownloadArtifactResponse part;
    while (reader->Read(&part)) {
      last_contact = absl::Now();
      pause = kFirstRetryPause;
      if (part.has_listing()) listing = part.listing();
      if (!part.has_chunk()) continue;
      const absl::Status taken = options.on_data(part.chunk().data());
      if (!taken.ok()) {
        context.TryCancel();
        while (reader->Read(&part)) {
        }
        reader->Finish();
        return taken;
      }
      offset += static_cast<int64_t>(part.chunk().data().size());
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (status.ok()) return listing;
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    if (absl::Now() - last_contact >
        std::min(impl_->options.reconnect_limit, impl_->options.timeout)) {
      return Annotate(status, absl::StrCat("lost the coordinator at ",
                                           impl_->options.address));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestRetryPause);
  }
}

absl::StatusOr<v1::Plan> JobClient::GetPlan(const std::string& job) {
  v1::GetPlanRequest request;
  request.set_name(JobName(job));
  CADRE_ASSIGN_OR_RETURN(
      v1::GetPlanResponse response,
      impl_->Call(impl_->jobs, &v1::JobService::Stub::GetPlan, request));
  return std::move(*response.mutable_plan());
}

absl::StatusOr<std::vector<v1::Checkpoint>> JobClient::ListCheckpoints(
    const std::string& job) {
  std::vector<v1::Checkpoint> checkpoints;
  v1::ListCheckpointsRequest request;
  request.set_parent(JobName(job));
  request.set_page_size(1000);
  do {
    CADRE_ASSIGN_OR_RETURN(
        v1::ListCheckpointsResponse response,
        impl_->Call(impl_->jobs, &v1::JobService::Stub::ListCheckpoints,
                    request));
    checkpoints.insert(checkpoints.end(), response.checkpoints().begin(),
                       response.checkpoints().end());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return checkpoints;
}

absl::StatusOr<std::vector<v1::Artifact>> JobClient::ListArtifacts(
    const std::string& job) {
  v1::ListArtifactsRequest request;
  request.set_parent(JobName(job));
  CADRE_ASSIGN_OR_RETURN(
      const v1::ListArtifactsResponse response,
      impl_->Call(impl_->jobs, &v1::JobService::Stub::ListArtifacts, request));
  return std::vector<v1::Artifact>(response.artifacts().begin(),
                                   response.artifacts().end());
}

absl::StatusOr<v1::GetMetricsResponse> JobClient::GetMetrics(
    v1::GetMetricsRequest request) {
  request.set_name(JobName(request.name()));
  return impl_->Call(impl_->jobs, &v1::JobService::Stub::GetMetrics, request);
}

absl::StatusOr<v1::RebalanceExpertsResponse> JobClient::RebalanceExperts(
    const std::string& job) {
  v1::RebalanceExpertsRequest request;
  request.set_name(JobName(job));
  request.set_request_id(NewUuid());
  return impl_->Call(impl_->jobs, &v1::JobService::Stub::RebalanceExperts,
                     request);
}

absl::StatusOr<v1::GetExpertLoadsResponse> JobClient::GetExpertLoads(
    v1::GetExpertLoadsRequest request) {
  request.set_job(JobName(request.job()));
  return impl_->Call(impl_->admin, &v1::AdminService::Stub::GetExpertLoads,
                     request);
}

absl::Status JobClient::Watch(const WatchOptions& options) {
  v1::WatchJobRequest request;
  request.set_name(JobName(options.job));
  request.set_history_only(options.history_only);
  int64_t sequence = options.after_sequence;
  absl::Time last_contact = absl::Now();
  absl::Duration pause = kFirstRetryPause;
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
      pause = kFirstRetryPause;
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
    pause = std::min(2 * pause, kLongestRetryPause);
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

std::string WorkerName(const std::string& worker) {
  return absl::StartsWith(worker, "workers/")
             ? worker
             : absl::StrCat("workers/", worker);
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
