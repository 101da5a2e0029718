#include "coordinator/store.h"

#include <sqlite3.h>

#include <utility>

#include "base/status_macros.h"

namespace cadre::coordinator {

absl::StatusOr<Statement*> Store::Cached(const char* sql) {
  auto it = statements_.find(sql);
  if (it == statements_.end()) {
    CADRE_ASSIGN_OR_RETURN(Statement statement, db_->Prepare(sql));
    it = statements_.emplace(sql, std::move(statement)).first;
  }
  return &it->second;
}

absl::Status Store::PutMeta(const std::string& key, const std::string& value) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)"));
  return put->Bind(1, key).Bind(2, value).Run();
}

absl::StatusOr<std::string> Store::GetMeta(const std::string& key) {
  CADRE_ASSIGN_OR_RETURN(Statement * get,
                         Cached("SELECT value FROM meta WHERE key = ?"));
  CADRE_ASSIGN_OR_RETURN(const bool row, get->Bind(1, key).Step());
  std::string value = row ? get->Text(0) : "";
  get->Reset();
  return value;
}

absl::Status Store::RemoveMeta(const std::string& key) {
  CADRE_ASSIGN_OR_RETURN(Statement * remove,
                         Cached("DELETE FROM meta WHERE key = ?"));
  return remove->Bind(1, key).Run();
}

absl::StatusOr<std::vector<std::string>> Store::MetaKeys(
    const std::string& prefix) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * get,
      Cached("SELECT key FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key"));
  get->Bind(1, static_cast<int64_t>(prefix.size())).Bind(2, prefix);
  std::vector<std::string> keys;
  for (;;) {
    CADRE_ASSIGN_OR_RETURN(const bool row, get->Step());
    if (!row) break;
    keys.push_back(get->Text(0));
  }
  get->Reset();
  return keys;
}

absl::Status Store::PutJob(const std::string& id,
                           const state::v1::JobRecord& record) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT INTO jobs(id, seq, owner, state, priority, record) "
             "VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET "
             "state = excluded.state, priority = excluded.priority, "
             "record = excluded.record"));
  return put->Bind(1, id)
      .Bind(2, record.create_sequence())
      .Bind(3, record.job().owner())
      .Bind(4, int64_t{record.job().state()})
      .Bind(5, int64_t{record.job().priority()})
      .BindBlob(6, record.SerializeAsString())
      .Run();
}

absl::StatusOr<std::vector<state::v1::JobRecord>> Store::LoadJobs() {
  CADRE_ASSIGN_OR_RETURN(Statement query,
                         db_->Prepare("SELECT id, record FROM jobs"));
  std::vector<state::v1::JobRecord> records;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return records;
    if (!records.emplace_back().ParseFromString(query.Text(1))) {
      return absl::DataLossError("job row '" + query.Text(0) +
                                 "' of state.db cannot be read");
    }
  }
}

absl::Status Store::PutRequest(const RequestRow& row) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT INTO requests(principal, method, request_id, "
             "body_sha256, job_id, created) VALUES(?, ?, ?, ?, ?, ?)"));
  return put->Bind(1, row.principal)
      .Bind(2, row.method)
      .Bind(3, row.request_id)
      .Bind(4, row.body_sha256)
      .Bind(5, row.job_id)
      .Bind(6, row.created)
      .Run();
}

absl::StatusOr<std::optional<RequestRow>> Store::FindRequest(
    const std::string& principal, const std::string& method,
    const std::string& request_id) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * query,
      Cached("SELECT body_sha256, job_id, created FROM requests WHERE "
             "principal = ? AND method = ? AND request_id = ?"));
  CADRE_ASSIGN_OR_RETURN(
      const bool found,
      query->Bind(1, principal).Bind(2, method).Bind(3, request_id).Step());
  std::optional<RequestRow> row;
  if (found) {
    row = RequestRow{principal,      method,         request_id,
                     query->Text(0), query->Text(1), query->Int(2)};
  }
  query->Reset();
  return row;
}

absl::StatusOr<bool> Store::IsTombstone(const std::string& id) {
  CADRE_ASSIGN_OR_RETURN(Statement * query,
                         Cached("SELECT 1 FROM tombstones WHERE id = ?"));
  CADRE_ASSIGN_OR_RETURN(const bool found, query->Bind(1, id).Step());
  query->Reset();
  return found;
}

absl::StatusOr<int64_t> Store::AppendEvent(const std::string& job_id,
                                           const v1::Event& event) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT INTO events(job_id, event) VALUES(?, ?)"));
  CADRE_RETURN_IF_ERROR(
      put->Bind(1, job_id).BindBlob(2, event.SerializeAsString()).Run());
  return sqlite3_last_insert_rowid(db_->get());
}

absl::StatusOr<std::vector<v1::Event>> Store::ReadEvents(
    const std::string& job_id, int64_t after, int limit) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * query,
      Cached("SELECT sequence, event FROM events WHERE job_id = ? AND "
             "sequence > ? ORDER BY sequence LIMIT ?"));
  query->Bind(1, job_id).Bind(2, after).Bind(3, int64_t{limit});
  std::vector<v1::Event> events;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool row, query->Step());
    if (!row) return events;
    v1::Event& event = events.emplace_back();
    const bool readable = event.ParseFromString(query->Text(1));
    event.set_sequence(query->Int(0));
    if (!readable) {
      query->Reset();
      return absl::DataLossError("event row " +
                                 std::to_string(event.sequence()) +
                                 " of state.db cannot be read");
    }
  }
}

absl::Status Store::PutWorker(const WorkerRow& row) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT OR REPLACE INTO workers(id, admin_state, reason, "
             "last_incarnation, drain_mode, drain_since, drain_until) "
             "VALUES(?, ?, ?, ?, ?, ?, ?)"));
  return put->Bind(1, row.id)
      .Bind(2, int64_t{row.admin_state})
      .Bind(3, row.reason)
      .Bind(4, row.last_incarnation)
      .Bind(5, int64_t{row.drain_mode})
      .Bind(6, row.drain_since)
      .Bind(7, row.drain_until)
      .Run();
}

absl::StatusOr<std::vector<WorkerRow>> Store::LoadWorkers() {
  CADRE_ASSIGN_OR_RETURN(
      Statement query,
      db_->Prepare("SELECT id, admin_state, reason, last_incarnation, "
                   "drain_mode, drain_since, drain_until FROM workers ORDER "
                   "BY id"));
  std::vector<WorkerRow> rows;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return rows;
    rows.push_back({.id = query.Text(0),
                    .admin_state = static_cast<int>(query.Int(1)),
                    .reason = query.Text(2),
                    .last_incarnation = query.Text(3),
                    .drain_mode = static_cast<int>(query.Int(4)),
                    .drain_since = query.Int(5),
                    .drain_until = query.Int(6)});
  }
}

absl::Status Store::PutExperts(const std::string& job_id,
                               const state::v1::ExpertPlacementState& state) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT OR REPLACE INTO experts(job_id, state) VALUES(?, ?)"));
  return put->Bind(1, job_id).BindBlob(2, state.SerializeAsString()).Run();
}

absl::StatusOr<std::map<std::string, state::v1::ExpertPlacementState>>
Store::LoadExperts() {
  CADRE_ASSIGN_OR_RETURN(Statement query,
                         db_->Prepare("SELECT job_id, state FROM experts"));
  std::map<std::string, state::v1::ExpertPlacementState> states;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return states;
    if (!states[query.Text(0)].ParseFromString(query.Text(1))) {
      return absl::DataLossError("expert placement of job " + query.Text(0) +
                                 " in state.db cannot be read");
    }
  }
}

}  // namespace cadre::coordinator
