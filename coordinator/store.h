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
};

class Store {
 public:
  explicit Store(Database* db) : db_(db) {}

  // Plain SQL without parameters.
  absl::Status Exec(const std::string& sql) { return db_->Exec(sql); }

  absl::Status PutMeta(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> GetMeta(const std::string& key);  // "": absent

  absl::Status PutJob(const std::string& id,
                      const state::v1::JobRecord& record);
  absl::StatusOr<std::vector<state::v1::JobRecord>> LoadJobs();

  absl::Status PutRequest(const RequestRow& row);
  absl::StatusOr<std::optional<RequestRow>> FindRequest(
      const std::string& principal, const std::string& method,
      const std::string& request_id);
  absl::StatusOr<bool> IsTombstone(const std::string& id);

  // Returns the event's sequence.
  absl::StatusOr<int64_t> AppendEvent(const std::string& job_id,
                                      const v1::Event& event);
  // Events of a job after a sequence, oldest first, with their sequences.
  absl::StatusOr<std::vector<v1::Event>> ReadEvents(const std::string& job_id,
                                                    int64_t after, int limit);

  absl::Status PutWorker(const WorkerRow& row);
  absl::StatusOr<std::vector<WorkerRow>> LoadWorkers();

 private:
  absl::StatusOr<Statement*> Cached(const char* sql);

  Database* const db_;
  std::map<const char*, Statement> statements_;  // by the literal's address
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_STORE_H_
