#ifndef CADRE_CLIENT_JOB_CLIENT_H_
#define CADRE_CLIENT_JOB_CLIENT_H_

// The client library: typed calls to a coordinator, with retries where they are
// safe and a watch that survives lost connections and coordinator restarts.
// Thread-safe. Errors carry the server's details (base/rpc/grpc_status.h).

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cadre/v1/admin_service.pb.h"
#include "cadre/v1/job_service.pb.h"

namespace cadre::client {

struct JobClientOptions {
  std::string address = "127.0.0.1:8470";
  // In PEM. Without `ca_file` the connection is in plaintext, and to loopback
  // addresses only.
  std::string ca_file, certificate_file, key_file;
  std::string token_file;  // sent with every call
  // Of one call, retries included.
  absl::Duration timeout = absl::Seconds(10);
  // A watch gives up after this long without contact.
  absl::Duration reconnect_limit = absl::Minutes(10);
};

class JobClient {
 public:
  // Connects with the first call; INVALID_ARGUMENT for a bad address.
  static absl::StatusOr<std::unique_ptr<JobClient>> Connect(
      JobClientOptions options);
  ~JobClient();

  // A missing request_id is filled with a fresh UUID, so that retries create
  // one job.
  absl::StatusOr<cadre::v1::CreateJobResponse> Create(
      cadre::v1::CreateJobRequest request);
  // `job` is an id or "jobs/{id}", here and below.
  absl::StatusOr<cadre::v1::Job> Get(const std::string& job,
                                     cadre::v1::JobView view);
  absl::StatusOr<cadre::v1::PlanJobResponse> PlanJob(
      cadre::v1::PlanJobRequest request);
  // In the order of `order_by`, newest first without one; follows pages up to
  // `limit` jobs.
  absl::StatusOr<std::vector<cadre::v1::Job>> List(
      const std::string& filter, int limit, const std::string& order_by = "");
  absl::StatusOr<cadre::v1::Job> Cancel(const std::string& job,
                                        const std::string& reason);
  absl::StatusOr<cadre::v1::Job> Pause(const std::string& job,
                                       const std::string& reason);
  // nullopt: the priority stays.
  absl::StatusOr<cadre::v1::Job> Resume(const std::string& job,
                                        const std::string& reason,
                                        std::optional<int> priority);
  absl::Status Delete(const std::string& job, const std::string& reason,
                      bool purge_artifacts = false);
  absl::StatusOr<cadre::v1::PurgeJobsResponse> Purge(
      cadre::v1::PurgeJobsRequest request);
  absl::StatusOr<cadre::v1::Plan> GetPlan(const std::string& job);
  // Newest first, all pages.
  absl::StatusOr<std::vector<cadre::v1::Checkpoint>> ListCheckpoints(
      const std::string& job);
  absl::StatusOr<std::vector<cadre::v1::Artifact>> ListArtifacts(
      const std::string& job);

  struct DownloadOptions {
    std::string name;  // "jobs/{job}/artifacts/adapter" or of a checkpoint
    std::string file;  // empty: only the listing
    int64_t offset = 0;
    bool path_only = false;
    // Told the bytes in order, each once. An error ends the download.
    std::function<absl::Status(const std::string&)> on_data;
  };
  // Blocks until all is there; a lost connection is resumed.
  absl::StatusOr<cadre::v1::DownloadArtifactResponse::Listing> Download(
      const DownloadOptions& options);

  absl::StatusOr<cadre::v1::GetMetricsResponse> GetMetrics(
      cadre::v1::GetMetricsRequest request);
  absl::StatusOr<cadre::v1::RebalanceExpertsResponse> RebalanceExperts(
      const std::string& job);
  absl::StatusOr<cadre::v1::GetExpertLoadsResponse> GetExpertLoads(
      cadre::v1::GetExpertLoadsRequest request);

  absl::StatusOr<std::vector<cadre::v1::Worker>> ListWorkers(
      const std::string& filter = "");
  // `worker` is an id or "workers/{id}".
  absl::StatusOr<cadre::v1::Worker> Cordon(const std::string& worker,
                                           const std::string& reason);
  absl::StatusOr<cadre::v1::Worker> Uncordon(const std::string& worker,
                                             const std::string& reason);
  absl::StatusOr<cadre::v1::Worker> Drain(cadre::v1::DrainRequest request);
  absl::StatusOr<cadre::v1::BackupStateResponse> Backup(
      const std::string& path);
  // Newest first, at most `limit`.
  absl::StatusOr<std::vector<cadre::v1::AuditRecord>> ListAudit(int limit);

  struct WatchOptions {
    std::string job;
    int64_t after_sequence = 0;
    bool history_only = false;
    std::function<void(const cadre::v1::WatchJobResponse&)> on_item;
    // A connection was lost and is being resumed; once per loss.
    std::function<void(const absl::Status&)> on_reconnect;
  };
  // Blocks until the job is in a terminal state (or history ends), handing on
  // each event exactly once. CANCELLED after Interrupt().
  absl::Status Watch(const WatchOptions& options);
  // Ends Watch calls under way and later ones; callable from any thread.
  void Interrupt();

 private:
  struct Impl;
  explicit JobClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "jobs/{id}" for an id, unchanged for a name.
std::string JobName(const std::string& job);
// "workers/{id}" for an id, unchanged for a name.
std::string WorkerName(const std::string& worker);
// The id in "jobs/{id}".
std::string JobId(const std::string& name);
// A random UUID (version 4).
std::string NewUuid();

}  // namespace cadre::client

#endif  // CADRE_CLIENT_JOB_CLIENT_H_
