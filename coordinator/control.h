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
#include <optional>
#include <string>
#include <unordered_map>
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
#include "coordinator/caller.h"
#include "coordinator/data_check.h"
#include "coordinator/job_table.h"
#include "coordinator/journal.h"
#include "coordinator/ledger.h"
#include "coordinator/rendezvous.h"
#include "coordinator/scheduler.h"
#include "coordinator/series.h"
#include "coordinator/work_pool.h"
#include "coordinator/worker_registry.h"
#include "plan/facts_cache.h"
#include "plan/replacement.h"

namespace cadre::coordinator {

struct ControlOptions {
  Clock* clock = nullptr;
  IdSource* ids = nullptr;
  MetricsRegistry* metrics = nullptr;
  DataChecker* data = nullptr;
  SeriesStore* series = nullptr;
  Timeouts timeouts;
  std::string outputs_dir;
  std::string checkpoints_dir;
  std::vector<std::string> allowed_roots;
  int max_queued_jobs = 1000;
  std::string state_dir, backup_dir;
  absl::Duration backup_every;  // 0: only when asked
  int backup_keep = 8;
  Quota quota;
  bool preemption = false;
  // How long a job that lost a worker waits for another before it goes on with
  // fewer, where it may.
  absl::Duration shrink_after = absl::Seconds(30);
  int cordon_after_failures = 3;  // within an hour; < 1: never
  struct Retention {
    absl::Duration jobs_for = absl::Hours(24 * 30);
    int jobs = 20'000;
    int events = 10'000;
    absl::Duration audit_for = absl::Hours(24 * 90);
    bool purge_artifacts = false;
  } retention;
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

  void CreateJob(const Caller& caller, v1::CreateJobRequest request,
                 Done<v1::CreateJobResponse> done);

  // Changes nothing.
  void PlanJob(const Caller& caller, const v1::PlanJobRequest& request,
               Done<v1::PlanJobResponse> done);

  // A verb on a job, in the fields that their requests share.
  struct JobVerb {
    const char* method = "";  // "CancelJob"
    Trigger trigger = Trigger::kCancel;
    const char* past = "";  // "cancelled"
    std::string name, request_id, etag, reason;
    std::optional<int32_t> priority;  // of ResumeJob
  };
  void ChangeJob(const Caller& caller, const JobVerb& verb, Done<v1::Job> done);
  void DeleteJob(const Caller& caller, const v1::DeleteJobRequest& request,
                 Done<v1::DeleteJobResponse> done);

  void Sync(const v1::SyncRequest& request, Done<v1::SyncResponse> done);

  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(
      const v1::ListWorkersRequest& request) const;
  struct WorkerVerb {
    const char* method = "";  // "Cordon"
    v1::Worker::AdminState to = v1::Worker::ADMIN_STATE_UNSPECIFIED;
    std::string name, request_id, reason;
    // With DRAINING:
    v1::DrainRequest::Mode mode = v1::DrainRequest::MODE_UNSPECIFIED;
    absl::Duration deadline;  // 0: drain_deadline
  };
  void ChangeWorker(const Caller& caller, const WorkerVerb& verb,
                    Done<v1::Worker> done);

  // An operator's order to move experts to where their loads want them.
  void RebalanceExperts(const Caller& caller,
                        const v1::RebalanceExpertsRequest& request,
                        Done<v1::RebalanceExpertsResponse> done);

  // Both read the disk, on the request pool.
  void GetMetrics(const v1::GetMetricsRequest& request,
                  Done<v1::GetMetricsResponse> done);
  void GetExpertLoads(const v1::GetExpertLoadsRequest& request,
                      Done<v1::GetExpertLoadsResponse> done);

  void PurgeJobs(const Caller& caller, const v1::PurgeJobsRequest& request,
                 Done<v1::PurgeJobsResponse> done);
  void ListAudit(const v1::ListAuditRecordsRequest& request,
                 Done<v1::ListAuditRecordsResponse> done);
  void Backup(const Caller& caller, const v1::BackupStateRequest& request,
              Done<v1::BackupStateResponse> done);
  // A call was refused. Floods are thinned: the log must not fill the disk.
  void AuditDenial(const Caller& caller, const std::string& method,
                   const std::string& reason);

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
  absl::Status Insert(Store& store, const Caller& caller,
                      const v1::CreateJobRequest& request,
                      const std::string& body_sha256, JobChange change,
                      v1::CreateJobResponse* response);
  // Notes who did what, with the change itself.
  absl::Status Audit(Store& store, const Caller& caller, const char* method,
                     const std::string& target);
  // A late duplicate of a verb must not act again: true if the request_id was
  // used for the same body before; else it is used now.
  absl::StatusOr<bool> Seen(Store& store, const Caller& caller,
                            const char* method, const std::string& request_id,
                            const std::string& body, const std::string& target);
  absl::Status HandleReports(Store& store, const v1::SyncRequest& request);
  absl::Status Evaluate(Store& store, const std::string& id);
  // The gauges of a live job.
  void ShowProgress(const std::string& id,
                    const google::protobuf::Timestamp& start,
                    const v1::Progress& progress);
  // What the reports, the clock and a worker's farewell ask of a job.
  Verdict JudgeJob(const state::v1::JobRecord& record, const GangView& gang);
  absl::Status Act(const Verdict& verdict, const GangView& gang,
                   JobChange* change);
  absl::Duration InState(const state::v1::JobRecord& record);
  // In the queue.
  absl::Duration Waited(const state::v1::JobRecord& record);
  absl::Status NoteExpiredLeases(Store& store);
  // Why the job's workers must be left now; "": they need not.
  std::string MustLeave(const state::v1::JobRecord& record,
                        const GangView& gang) const;
  absl::Status PutWorker(Store& store, const WorkerRow& row);
  void PublishWorkers();
  absl::Status PutExperts(Store& store, const std::string& id,
                          state::v1::ExpertPlacementState state);
  void PublishExperts();
  // result: applied or skipped.
  void CountRebalance(const char* result);
  // Tells of a placement that was ordered.
  absl::Status NotePlan(Store& store, const std::string& id,
                        const ReplacementDecision& decision,
                        const std::string& why);
  // Rank 0 says that a placement is in force.
  absl::Status TakeExpertsPlaced(Store& store, const v1::ExpertsPlaced& placed,
                                 JobChange* change);
  absl::Status SaveProgress(Store& store);
  absl::Status Place(Store& store);
  absl::Status ExplainWaits(Store& store,
                            const std::vector<WaitReason>& reasons);
  // Notes a failure against the worker; too many within an hour cordon it.
  absl::Status Blame(Store& store, const state::v1::JobRecord& record,
                     const Verdict& verdict);
  void BackUpIfDue();
  // The job that starts from files of `record`; "": none.
  std::string UserOf(const state::v1::JobRecord& record) const;
  // CHECKPOINT_IN_USE or ARTIFACT_NOT_LOCAL: the job's files must stay.
  absl::Status CheckPurge(const state::v1::JobRecord& record) const;
  // Buries an ended job; `purge` notes its folders for removal.
  absl::Status Forget(Store& store, const RecordPtr& record, bool purge);
  // Removes what is noted in the journal, on the request pool.
  void RemoveNotedFolders();
  // Once an hour: what is past its time goes, a part at a time.
  absl::Status HouseKeep(Store& store);
  absl::Status FinishCheck(Store& store, const std::string& id,
                           const DataVerdict& verdict);

  // False also where that cannot be told.
  bool IsNewRequest(const std::string& principal,
                    const std::string& request_id);
  // `prepare` runs where the id was new after all.
  void Replay(const Caller& caller,
              const std::shared_ptr<v1::CreateJobRequest>& shared,
              const std::string& sha, std::function<void()> prepare,
              Done<v1::CreateJobResponse> done);
  void PrepareCreate(const Caller& caller, const v1::CreateJobRequest& request,
                     const std::string& body_sha256,
                     Done<v1::CreateJobResponse> done);
  absl::StatusOr<v1::PlanJobResponse> MakePlanFor(
      const Caller& caller, const v1::PlanJobRequest& request);
  // What the scheduler would say of one job more; only what is about it.
  SchedulerPass TryPlacing(const WaitingJob& job,
                           std::vector<WorkerSlot> workers) const;
  void CheckData(const std::string& id);
  // Values over steps go to the series; they are no state. True when there were
  // any.
  bool TakeValues(const v1::SyncRequest& request);
  // A window of loads may move experts; decided on the request pool.
  void TakeWindow(const RecordPtr& record, const v1::ExpertLoads& loads);
  // As committed; null: nothing is known of the job's experts.
  std::shared_ptr<const state::v1::ExpertPlacementState> ExpertsOf(
      const std::string& id) const;
  void FillPlacement(const state::v1::JobRecord& record,
                     const v1::SyncRequest& request,
                     v1::SyncResponse* reply) const;
  v1::SyncResponse Reply(const v1::SyncRequest& request) const;
  // Of a Sync whose reports of state are committed.
  void Answer(const v1::SyncRequest& request,
              const Done<v1::SyncResponse>& done);
  // The worker with its place in a job; the row is of the committed ones.
  v1::Worker Show(const WorkerRow* row, const WorkerView* view) const;
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
  bool workers_changed_ = false;
  using ExpertStates =
      std::map<std::string,
               std::shared_ptr<const state::v1::ExpertPlacementState>>;
  ExpertStates experts_;  // by job
  bool experts_changed_ = false;
  bool folders_noted_ = false;
  std::map<std::string, absl::Duration> retry_at_;  // by job; monotonic
  struct Since {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    int64_t epoch = 0;
    absl::Duration at;  // monotonic; after a restart, its time
  };
  // By create_sequence: every tick looks at every live job.
  std::unordered_map<int64_t, Since> since_;
  absl::Duration next_progress_save_, next_house_keeping_, next_backup_;
  std::map<std::string, absl::Duration> reason_written_;  // by job; monotonic
  std::map<std::string, std::vector<absl::Duration>> blamed_;  // by worker
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> denials_this_second_{0}, denial_second_{0};
  mutable absl::Mutex workers_mutex_;
  std::map<std::string, WorkerRow> committed_workers_
      ABSL_GUARDED_BY(workers_mutex_);
  ExpertStates committed_experts_ ABSL_GUARDED_BY(workers_mutex_);
  ModelFactsCache facts_;
  absl::Mutex readers_mutex_;
  // Connections that no thread uses at the moment.
  std::vector<std::unique_ptr<Database>> readers_
      ABSL_GUARDED_BY(readers_mutex_);
  // Last: their threads use the rest.
  std::unique_ptr<WorkPool> request_pool_;
  std::unique_ptr<WorkPool> data_pool_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_CONTROL_H_
