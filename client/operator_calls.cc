// JobClient's calls for those who run a cluster: workers, backups, audit.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/job_client.h"
#include "client/job_client_impl.h"

namespace cadre::client {

absl::StatusOr<v1::PurgeJobsResponse> JobClient::Purge(
    v1::PurgeJobsRequest request) {
  return impl_->Call(impl_->admin, &v1::AdminService::Stub::PurgeJobs, request);
}

absl::StatusOr<std::vector<v1::Worker>> JobClient::ListWorkers(
    const std::string& filter) {
  std::vector<v1::Worker> workers;
  v1::ListWorkersRequest request;
  request.set_filter(filter);
  request.set_page_size(1000);
  do {
    CADRE_ASSIGN_OR_RETURN(
        v1::ListWorkersResponse response,
        impl_->Call(impl_->admin, &v1::AdminService::Stub::ListWorkers,
                    request));
    for (auto& w : *response.mutable_workers()) workers.push_back(std::move(w));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return workers;
}

absl::StatusOr<v1::Worker> JobClient::Cordon(const std::string& worker,
                                             const std::string& reason) {
  CADRE_ASSIGN_OR_RETURN(
      v1::CordonResponse response,
      impl_->Call(impl_->admin, &v1::AdminService::Stub::Cordon,
                  Verb<v1::CordonRequest>(WorkerName(worker), reason)));
  return std::move(*response.mutable_worker());
}

absl::StatusOr<v1::Worker> JobClient::Uncordon(const std::string& worker,
                                               const std::string& reason) {
  CADRE_ASSIGN_OR_RETURN(
      v1::UncordonResponse response,
      impl_->Call(impl_->admin, &v1::AdminService::Stub::Uncordon,
                  Verb<v1::UncordonRequest>(WorkerName(worker), reason)));
  return std::move(*response.mutable_worker());
}

absl::StatusOr<v1::Worker> JobClient::Drain(v1::DrainRequest request) {
  request.set_name(WorkerName(request.name()));
  request.set_request_id(NewUuid());
  CADRE_ASSIGN_OR_RETURN(
      v1::DrainResponse response,
      impl_->Call(impl_->admin, &v1::AdminService::Stub::Drain, request));
  return std::move(*response.mutable_worker());
}

absl::StatusOr<v1::BackupStateResponse> JobClient::Backup(
    const std::string& path) {
  v1::BackupStateRequest request;
  request.set_path(path);
  return impl_->Call(impl_->admin, &v1::AdminService::Stub::BackupState,
                     request);
}

absl::StatusOr<std::vector<v1::AuditRecord>> JobClient::ListAudit(int limit) {
  std::vector<v1::AuditRecord> records;
  v1::ListAuditRecordsRequest request;
  do {
    request.set_page_size(
        std::min(limit - static_cast<int>(records.size()), 1000));
    CADRE_ASSIGN_OR_RETURN(
        v1::ListAuditRecordsResponse response,
        impl_->Call(impl_->admin, &v1::AdminService::Stub::ListAuditRecords,
                    request));
    records.insert(records.end(), response.records().begin(),
                   response.records().end());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() &&
           static_cast<int>(records.size()) < limit);
  return records;
}

}  // namespace cadre::client
