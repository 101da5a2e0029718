// Store's part that forgets, and the audit log.

#include "base/status_macros.h"
#include "coordinator/store.h"

namespace cadre::coordinator {

absl::Status Store::BuryJob(const std::string& id) {
  for (const char* sql :
       {"INSERT OR IGNORE INTO tombstones(id) VALUES(?)",
        "DELETE FROM jobs WHERE id = ?", "DELETE FROM events WHERE job_id = ?",
        "DELETE FROM trimmed WHERE job_id = ?",
        "DELETE FROM experts WHERE job_id = ?"}) {
    CADRE_ASSIGN_OR_RETURN(Statement * statement, Cached(sql));
    CADRE_RETURN_IF_ERROR(statement->Bind(1, id).Run());
  }
  return absl::OkStatus();
}

absl::Status Store::TrimRequests(int64_t before_seconds) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * trim,
      Cached("DELETE FROM requests WHERE created < ? AND NOT EXISTS (SELECT 1 "
             "FROM jobs WHERE jobs.id = requests.job_id)"));
  return trim->Bind(1, before_seconds).Run();
}

absl::Status Store::TrimEvents(const std::string& job_id, int64_t keep) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * last,
      Cached("SELECT sequence FROM events WHERE job_id = ? ORDER BY sequence "
             "DESC LIMIT 1 OFFSET ?"));
  CADRE_ASSIGN_OR_RETURN(const bool found,
                         last->Bind(1, job_id).Bind(2, keep).Step());
  const int64_t sequence = found ? last->Int(0) : 0;
  last->Reset();
  if (!found) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(
      Statement * trim,
      Cached("DELETE FROM events WHERE job_id = ? AND sequence <= ?"));
  CADRE_RETURN_IF_ERROR(trim->Bind(1, job_id).Bind(2, sequence).Run());
  CADRE_ASSIGN_OR_RETURN(
      Statement * mark,
      Cached("INSERT OR REPLACE INTO trimmed(job_id, last_sequence) "
             "VALUES(?, ?)"));
  return mark->Bind(1, job_id).Bind(2, sequence).Run();
}

absl::StatusOr<int64_t> Store::TrimmedUpTo(const std::string& job_id) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * query,
      Cached("SELECT last_sequence FROM trimmed WHERE job_id = ?"));
  CADRE_ASSIGN_OR_RETURN(const bool found, query->Bind(1, job_id).Step());
  const int64_t sequence = found ? query->Int(0) : 0;
  query->Reset();
  return sequence;
}

absl::Status Store::AppendAudit(const AuditRow& row) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * put,
      Cached("INSERT INTO audit(time, principal, peer, method, target, "
             "outcome) VALUES(?, ?, ?, ?, ?, ?)"));
  return put->Bind(1, row.time_ns)
      .Bind(2, row.principal)
      .Bind(3, row.peer)
      .Bind(4, row.method)
      .Bind(5, row.target)
      .Bind(6, row.outcome)
      .Run();
}

absl::StatusOr<std::vector<AuditRow>> Store::ReadAudit(int64_t below,
                                                       int limit) {
  CADRE_ASSIGN_OR_RETURN(
      Statement * query,
      Cached("SELECT sequence, time, principal, peer, method, target, outcome "
             "FROM audit WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"));
  query->Bind(1, below).Bind(2, int64_t{limit});
  std::vector<AuditRow> rows;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool row, query->Step());
    if (!row) return rows;
    rows.push_back({.sequence = query->Int(0),
                    .time_ns = query->Int(1),
                    .principal = query->Text(2),
                    .peer = query->Text(3),
                    .method = query->Text(4),
                    .target = query->Text(5),
                    .outcome = query->Text(6)});
  }
}

absl::Status Store::TrimAudit(int64_t before_ns) {
  CADRE_ASSIGN_OR_RETURN(Statement * trim,
                         Cached("DELETE FROM audit WHERE time < ?"));
  return trim->Bind(1, before_ns).Run();
}

}  // namespace cadre::coordinator
