#ifndef CADRE_COORDINATOR_STORE_H_
#define CADRE_COORDINATOR_STORE_H_

// Typed rows of state.db on one connection. Not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/job.pb.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {

struct RequestRow {
  std::string principal, method, request_id;
  std::string body_sha256;
  std::string job_id;
  int64_t created = 0;  // Unix seconds
};

struct WorkerRow {
  std::string id;
  int admin_state = 0;  // v1::Worker::AdminState
  std::string reason;
  std::string last_incarnation;
  // While DRAINING: v1::DrainRequest::Mode, and Unix nanoseconds.
  int drain_mode = 0;
  int64_t drain_since = 0;
  int64_t drain_until = 0;
};

struct AuditRow {
  int64_t sequence = 0;
  int64_t time_ns = 0;
  std::string principal, peer, method, target, outcome;
};

class Store {
 public:
  explicit Store(Database* db) : db_(db) {}

  // Plain SQL without parameters.
  absl::Status Exec(const std::string& sql) { return db_->Exec(sql); }

  absl::Status PutMeta(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> GetMeta(const std::string& key);  // "": absent
  absl::Status RemoveMeta(const std::string& key);
  // Those that begin with `prefix`, in order.
  absl::StatusOr<std::vector<std::string>> MetaKeys(const std::string& prefix);

  absl::Status PutJob(const std::string& id,
                      const state::v1::JobRecord& record);
  absl::StatusOr<std::vector<state::v1::JobRecord>> LoadJobs();
  // The job, its events and their mark; its id stays as a tombstone.
  absl::Status BuryJob(const std::string& id);

  absl::Status PutRequest(const RequestRow& row);
  absl::StatusOr<std::optional<RequestRow>> FindRequest(
      const std::string& principal, const std::string& method,
      const std::string& request_id);
  // Requests made before that time whose job is gone.
  absl::Status TrimRequests(int64_t before_seconds);
  absl::StatusOr<bool> IsTombstone(const std::string& id);

  // Returns the event's sequence.
  absl::StatusOr<int64_t> AppendEvent(const std::string& job_id,
                                      const v1::Event& event);
  // Events of a job after a sequence, oldest first, with their sequences.
  absl::StatusOr<std::vector<v1::Event>> ReadEvents(const std::string& job_id,
                                                    int64_t after, int limit);
  // Removes all but the newest `keep` events of a job.
  absl::Status TrimEvents(const std::string& job_id, int64_t keep);
  // Sequence of the newest event that was removed; 0: none.
  absl::StatusOr<int64_t> TrimmedUpTo(const std::string& job_id);

  absl::Status PutWorker(const WorkerRow& row);
  absl::StatusOr<std::vector<WorkerRow>> LoadWorkers();

  absl::Status PutExperts(const std::string& job_id,
                          const state::v1::ExpertPlacementState& state);
  // By job.
  absl::StatusOr<std::map<std::string, state::v1::ExpertPlacementState>>
  LoadExperts();

  absl::Status AppendAudit(const AuditRow& row);
  // Newest first, below a sequence.
  absl::StatusOr<std::vector<AuditRow>> ReadAudit(int64_t below, int limit);
  absl::Status TrimAudit(int64_t before_ns);

 private:
  absl::StatusOr<Statement*> Cached(const char* sql);

  Database* const db_;
  std::map<const char*, Statement> statements_;  // by the literal's address
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_STORE_H_
