#ifndef CADRE_BASE_METRICS_NAMES_H_
#define CADRE_BASE_METRICS_NAMES_H_

// Every metric of Cadre: name, type, help. Prefix cadre_, base units, counters
// end in _total. No label may hold an expert, a layer, a user or free text;
// `job` appears only where the comment says so, and its series go when the job
// ends.

#include <vector>

namespace cadre {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricDef {
  const char* name;
  MetricType type;
  const char* help;
  // Upper bounds of a histogram's buckets; kFast or kSlow.
  enum class Buckets { kNone, kFast, kSlow } buckets = Buckets::kNone;
};

// Bounds in seconds: calls and commits (1 ms - 10 s), work (0.1 s - 1 h).
std::vector<double> BucketBounds(MetricDef::Buckets buckets);

namespace metric {

using enum MetricType;
using enum MetricDef::Buckets;

// ---- every daemon ----------------------------------------------------------
// Labels: version, commit, backend.
inline constexpr MetricDef kBuildInfo{"cadre_build_info", kGauge,
                                      "Always 1; labels tell the build."};

// ---- coordinator -----------------------------------------------------------
inline constexpr MetricDef kJobs{"cadre_jobs", kGauge, "Jobs by state."};
inline constexpr MetricDef kQueueJobs{
    "cadre_queue_jobs", kGauge, "Queued jobs by the reason they wait for."};
// Labels: result ok|replayed|refused.
inline constexpr MetricDef kJobsCreated{"cadre_jobs_created_total", kCounter,
                                        "CreateJob calls by result."};
// Labels: to, cause.
inline constexpr MetricDef kJobTransitions{
    "cadre_job_transitions_total", kCounter,
    "State changes of jobs by the state entered and the failure cause."};
inline constexpr MetricDef kJobRestarts{
    "cadre_job_restarts_total", kCounter,
    "Attempts that ended early and led to recovery, by cause."};
inline constexpr MetricDef kJobFailures{"cadre_job_failures_total", kCounter,
                                        "Jobs that failed, by cause."};
inline constexpr MetricDef kJobQueueWait{
    "cadre_job_queue_wait_seconds", kHistogram, "Time from QUEUED to STARTING.",
    kSlow};
// Label job; live jobs only.
inline constexpr MetricDef kJobProgress{
    "cadre_job_progress_ratio", kGauge,
    "Steps done over steps in all; live jobs only."};
// Labels: state, admin_state.
inline constexpr MetricDef kWorkers{"cadre_workers", kGauge,
                                    "Registered workers by state."};
// Labels: verdict lost|unreachable.
inline constexpr MetricDef kLeaseExpirations{
    "cadre_worker_lease_expirations_total", kCounter,
    "Worker leases that ran out, by the verdict on the worker."};
// Labels: result ok|fenced|error.
inline constexpr MetricDef kSyncRequests{"cadre_sync_requests_total", kCounter,
                                         "Sync calls of workers by result."};
// Labels: method, code.
inline constexpr MetricDef kGrpcRequests{"cadre_grpc_requests_total", kCounter,
                                         "Finished gRPC calls."};
// Label: method.
inline constexpr MetricDef kGrpcSeconds{"cadre_grpc_request_seconds",
                                        kHistogram,
                                        "Duration of unary gRPC calls.", kFast};
inline constexpr MetricDef kJournalCommit{
    "cadre_journal_commit_seconds", kHistogram,
    "Duration of one journal transaction, the disk write included.", kFast};
// Label: file db|wal.
inline constexpr MetricDef kJournalBytes{"cadre_journal_bytes", kGauge,
                                         "Size of the journal's files."};
inline constexpr MetricDef kGeneration{
    "cadre_coordinator_generation", kGauge,
    "Fence: grows by one at each start of the coordinator."};

}  // namespace metric
}  // namespace cadre

#endif  // CADRE_BASE_METRICS_NAMES_H_
