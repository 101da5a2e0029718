#ifndef CADRE_COORDINATOR_SCHEMA_H_
#define CADRE_COORDINATOR_SCHEMA_H_

// The tables of state.db and their numbered, forward-only migrations.

#include "absl/status/status.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {

// Brings an empty or older database to the newest schema, one transaction per
// step. FAILED_PRECONDITION if the database is newer than this program.
absl::Status Migrate(Database& db);

// Schema number that this program writes.
int SchemaVersion();

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SCHEMA_H_
