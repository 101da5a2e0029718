#include "coordinator/schema.h"

#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"

namespace cadre::coordinator {
namespace {

// Entry i makes schema i + 1. Released entries never change.
constexpr const char* kMigrations[] = {
    R"sql(
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE jobs(
  id TEXT PRIMARY KEY,
  seq INTEGER NOT NULL UNIQUE,
  owner TEXT NOT NULL,
  state INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  record BLOB NOT NULL          -- cadre.state.v1.JobRecord
) STRICT;
CREATE TABLE requests(
  principal TEXT NOT NULL,
  method TEXT NOT NULL,
  request_id TEXT NOT NULL,
  body_sha256 TEXT NOT NULL,
  job_id TEXT NOT NULL,
  created INTEGER NOT NULL,
  PRIMARY KEY(principal, method, request_id)
) STRICT;
-- AUTOINCREMENT: a sequence is never used twice, not even after deletion.
CREATE TABLE events(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL,
  event BLOB NOT NULL           -- cadre.v1.Event without its sequence
) STRICT;
CREATE INDEX events_by_job ON events(job_id, sequence);
CREATE TABLE workers(
  id TEXT PRIMARY KEY,
  admin_state INTEGER NOT NULL,
  reason TEXT NOT NULL,
  last_incarnation TEXT NOT NULL
) STRICT;
-- Ids are never reused, not even after deletion.
CREATE TABLE tombstones(id TEXT PRIMARY KEY) STRICT;
)sql",
    R"sql(
CREATE INDEX requests_by_time ON requests(created);
-- Times are Unix nanoseconds.
ALTER TABLE workers ADD COLUMN drain_mode INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN drain_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN drain_until INTEGER NOT NULL DEFAULT 0;
CREATE TABLE audit(
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  time INTEGER NOT NULL,
  principal TEXT NOT NULL,
  peer TEXT NOT NULL,
  method TEXT NOT NULL,
  target TEXT NOT NULL,
  outcome TEXT NOT NULL
) STRICT;
-- Where the events of a job begin once the oldest were removed.
CREATE TABLE trimmed(
  job_id TEXT PRIMARY KEY,
  last_sequence INTEGER NOT NULL
) STRICT;
)sql",
    R"sql(
-- Where experts lie; apart from the jobs, which are written more often.
CREATE TABLE experts(
  job_id TEXT PRIMARY KEY,
  state BLOB NOT NULL           -- cadre.state.v1.ExpertPlacementState
) STRICT;
)sql",
};

}  // namespace

int SchemaVersion() { return static_cast<int>(std::size(kMigrations)); }

const char* MigrationTo(int schema) { return kMigrations[schema - 1]; }

absl::Status Migrate(Database& db, const std::string& path) {
  int64_t version = 0;
  {
    CADRE_ASSIGN_OR_RETURN(Statement query, db.Prepare("PRAGMA user_version"));
    CADRE_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (row) version = query.Int(0);
  }
  if (version > SchemaVersion()) {
    return Error(absl::StatusCode::kFailedPrecondition, "SCHEMA_NEWER",
                 absl::StrCat("state.db has schema ", version,
                              " but this program knows only ", SchemaVersion(),
                              ": it was written by a newer release; upgrade"));
  }
  if (version > 0 && version < SchemaVersion()) {
    const std::string copy = absl::StrCat(path, ".schema-", version);
    std::error_code ignored;
    std::filesystem::remove(copy, ignored);  // of a try that did not end
    CADRE_ASSIGN_OR_RETURN(Statement vacuum, db.Prepare("VACUUM INTO ?"));
    CADRE_RETURN_IF_ERROR(
        Annotate(vacuum.Bind(1, copy).Run(), "copy before the migration"));
  }
  for (; version < SchemaVersion(); ++version) {
    CADRE_RETURN_IF_ERROR(
        Annotate(db.Exec(absl::StrCat("BEGIN IMMEDIATE;", kMigrations[version],
                                      "PRAGMA user_version = ", version + 1,
                                      "; COMMIT;")),
                 absl::StrCat("migration to schema ", version + 1)));
  }
  return absl::OkStatus();
}

}  // namespace cadre::coordinator
