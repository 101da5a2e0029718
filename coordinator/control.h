#ifndef CADRE_COORDINATOR_CONTROL_H_
#define CADRE_COORDINATOR_CONTROL_H_

// Ties the pure parts together: takes calls, lets the journal's writer thread
// decide, answers after the commit. All decisions about jobs are made on that
// thread, one after the other, so none sees a half-made one; reads come from
// the committed JobTable. Thread-safe; callbacks run on the writer thread or
// the caller's and must not block.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/metrics/registry.h"
#include "base/timeouts.h"
#include "cadre/v1/admin_service.pb.h"
#include "cadre/v1/job_service.pb.h"
#include "cadre/v1/worker_service.pb.h"
#include "coordinator/attempt.h"
#include "coordinator/data_check.h"
#include "coordinator/job_table.h"
#include "coordinator/journal.h"
#include "coordinator/ledger.h"
#include "coordinator/rendezvous.h"
#include "coordinator/work_pool.h"
#include "coordinator/worker_registry.h"

namespace cadre::coordinator {

struct ControlOptions {
  Clock* clock = nullptr;
  IdSource* ids = nullptr;
  MetricsRegistry* metrics = nullptr;
  DataChecker* data = nullptr;
  Timeouts timeouts;
  std::string outputs_dir;
  std::string checkpoints_dir;
  std::vector<std::string> allowed_roots;
  int max_queued_jobs = 1000;
};

class Control {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  // Loads the journal and starts its writer; both must outlive the control's
  // Stop.
  static absl::StatusOr<std::unique_ptr<Control>> Start(
      const ControlOptions& options, Journal* journal);
  ~Control();  // Stop
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void CreateJob(const std::string& principal, v1::CreateJobRequest request,
                 Done<v1::CreateJobResponse> done);
  void CancelJob(const std::string& principal,
                 const v1::CancelJobRequest& request,
                 Done<v1::CancelJobResponse> done);
  void Sync(const v1::SyncRequest& request, Done<v1::SyncResponse> done);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(
      const v1::ListWorkersRequest& request) const;

  // One round of judging, recovering and placing. The server calls it all the
  // time; a test calls it after moving the clock. Returns after the commit.
  void Tick();

  // Before the journal: no decision is made after it.
  void Stop();

  JobTable& table() { return table_; }

 private:
  Control(const ControlOptions& options, Journal* journal);
  absl::Status Load();

  // On the writer thread.
  absl::Status Insert(Store& store, const std::string& principal,
                      const v1::CreateJobRequest& request,
                      const std::string& body_sha256, JobChange change,
                      v1::CreateJobResponse* response);
  absl::Status HandleReports(Store& store, const v1::SyncRequest& request);
  absl::Status Evaluate(Store& store, const std::string& id);
  // What the reports, the clock and a worker's farewell ask of a job.
  Verdict JudgeJob(const state::v1::JobRecord& record, const GangView& gang);
  absl::Status Act(const Verdict& verdict, const GangView& gang,
                   JobChange* change);
  absl::Duration InState(const state::v1::JobRecord& record);
  absl::Status NoteExpiredLeases(Store& store);
  absl::Status SaveProgress(Store& store);
  absl::Status Place(Store& store);
  absl::Status FinishCheck(Store& store, const std::string& id,
                           const DataVerdict& verdict);

  void PrepareCreate(const std::string& principal,
                     const v1::CreateJobRequest& request,
                     const std::string& body_sha256,
                     Done<v1::CreateJobResponse> done);
  void CheckData(const std::string& id);
  v1::SyncResponse Reply(const v1::SyncRequest& request) const;
  void FillRun(const state::v1::JobRecord& record, int rank,
               const v1::SyncRequest& request, v1::SyncResponse* reply) const;
  // For one lease after a start that found attempts under way, their workers
  // are given time to report: no verdicts, no placements.
  bool WarmingUp() const;

  const ControlOptions options_;
  Journal* const journal_;
  const absl::Duration started_;
  bool warm_up_ = false;  // set while loading
  JobTable table_;
  WorkerRegistry registry_;
  Rendezvous rendezvous_;
  // The writer thread's own.
  Ledger ledger_;
  std::map<std::string, WorkerRow> worker_rows_;
  std::map<std::string, absl::Duration> retry_at_;  // by job; monotonic
  struct Since {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    int64_t epoch = 0;
    absl::Duration at;  // monotonic; after a restart, its time
  };
  std::map<std::string, Since> since_;  // by job
  absl::Duration next_progress_save_;
  std::atomic<bool> stopped_{false};
  // Last: their threads use the rest.
  std::unique_ptr<WorkPool> request_pool_;
  std::unique_ptr<WorkPool> data_pool_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_CONTROL_H_
