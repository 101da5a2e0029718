#ifndef CADRE_COORDINATOR_SCHEMA_H_
#define CADRE_COORDINATOR_SCHEMA_H_

// The tables of state.db and their numbered, forward-only migrations.

#include <string>

#include "absl/status/status.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {

// Brings an empty or older database to the newest schema, one transaction per
// step, after a copy of an older one beside it ("PATH.schema-1").
// FAILED_PRECONDITION (SCHEMA_NEWER) if the database is newer than this
// program.
absl::Status Migrate(Database& db, const std::string& path);

// The statements that make a schema from the one before, for tests.
const char* MigrationTo(int schema);

// Schema number that this program writes.
int SchemaVersion();

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SCHEMA_H_
