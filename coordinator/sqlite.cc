#include "coordinator/sqlite.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace cadre::coordinator {
namespace {

absl::Status ToStatus(sqlite3* db, int rc, absl::string_view what) {
  if (rc == SQLITE_OK || rc == SQLITE_ROW || rc == SQLITE_DONE) {
    return absl::OkStatus();
  }
  const std::string message =
      absl::StrCat("SQLite: ", what, ": ", sqlite3_errmsg(db), " (",
                   sqlite3_errstr(rc), ", code ", rc, ")");
  switch (rc & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

void Statement::Deleter::operator()(sqlite3_stmt* stmt) const {
  sqlite3_finalize(stmt);
}

Statement& Statement::Bind(int parameter, int64_t value) {
  bind_error_ |= sqlite3_bind_int64(get(), parameter, value);
  return *this;
}

Statement& Statement::Bind(int parameter, const std::string& value) {
  bind_error_ |=
      sqlite3_bind_text64(get(), parameter, value.data(), value.size(),
                          SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

Statement& Statement::BindReal(int parameter, double value) {
  bind_error_ |= sqlite3_bind_double(get(), parameter, value);
  return *this;
}

Statement& Statement::BindBlob(int parameter, const std::string& value) {
  bind_error_ |= sqlite3_bind_blob64(get(), parameter, value.data(),
                                     value.size(), SQLITE_TRANSIENT);
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  CADRE_CHECK(bind_error_ == 0) << "bad parameter in " << sqlite3_sql(get());
  const int rc = sqlite3_step(get());
  if (rc == SQLITE_ROW) return true;
  const absl::Status status =
      ToStatus(sqlite3_db_handle(get()), rc, sqlite3_sql(get()));
  Reset();
  if (!status.ok()) return status;
  return false;
}

absl::Status Statement::Run() {
  const absl::Status status = Step().status();
  Reset();
  return status;
}

void Statement::Reset() {
  sqlite3_reset(get());
  sqlite3_clear_bindings(get());
}

int64_t Statement::Int(int column) const {
  return sqlite3_column_int64(get(), column);
}

double Statement::Real(int column) const {
  return sqlite3_column_double(get(), column);
}

std::string Statement::Text(int column) const {
  const void* data = sqlite3_column_blob(get(), column);
  const int size = sqlite3_column_bytes(get(), column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), size);
}

void Database::Deleter::operator()(sqlite3* db) const {
  const int rc = sqlite3_close(db);
  if (rc != SQLITE_OK) CADRE_LOG(ERROR) << "sqlite3_close: code " << rc;
}

absl::StatusOr<Database> Database::Open(const std::string& path, Mode mode) {
  sqlite3* raw = nullptr;
  const int flags = mode == Mode::kReadOnly
                        ? SQLITE_OPEN_READONLY
                        : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const int rc =
      sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw);
  if (raw == nullptr) return absl::ResourceExhaustedError("SQLite: no memory");
  const absl::Status status = ToStatus(raw, rc, absl::StrCat("open ", path));
  if (!status.ok()) return status;
  sqlite3_busy_timeout(raw, 5000);
  return db;
}

absl::Status Database::Exec(const std::string& sql) {
  return ToStatus(get(),
                  sqlite3_exec(get(), sql.c_str(), nullptr, nullptr, nullptr),
                  sql.substr(0, 80));
}

absl::StatusOr<Statement> Database::Prepare(absl::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int rc =
      sqlite3_prepare_v3(get(), sql.data(), static_cast<int>(sql.size()),
                         SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  const absl::Status status = ToStatus(get(), rc, sql);
  if (!status.ok()) return status;
  return Statement(raw);
}

bool Database::InTransaction() const {
  return sqlite3_get_autocommit(get()) == 0;
}

}  // namespace cadre::coordinator
