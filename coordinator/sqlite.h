#ifndef CADRE_COORDINATOR_SQLITE_H_
#define CADRE_COORDINATOR_SQLITE_H_

// Owning handles over SQLite with absl::Status. Not thread-safe: one thread
// uses a database and its statements.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace cadre::coordinator {

// A prepared statement. Column numbers start at 0, parameters at 1. Movable.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* stmt) : stmt_(stmt) {}

  Statement& Bind(int parameter, int64_t value);
  Statement& Bind(int parameter, const std::string& value);  // TEXT
  Statement& BindReal(int parameter, double value);
  Statement& BindBlob(int parameter, const std::string& value);

  // True: a row is there. False: done; the statement is ready for new values.
  absl::StatusOr<bool> Step();
  // Step for a statement without rows, then ready for new values.
  absl::Status Run();
  void Reset();

  int64_t Int(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;  // also BLOB

  sqlite3_stmt* get() const { return stmt_.get(); }
  sqlite3_stmt* release() { return stmt_.release(); }

 private:
  struct Deleter {
    void operator()(sqlite3_stmt* stmt) const;
  };
  std::unique_ptr<sqlite3_stmt, Deleter> stmt_;
  int bind_error_ = 0;
};

// A connection. Movable; statements must go before it.
class Database {
 public:
  enum class Mode { kReadWrite, kReadOnly };
  static absl::StatusOr<Database> Open(const std::string& path, Mode mode);

  // One or more statements without parameters.
  absl::Status Exec(const std::string& sql);
  absl::StatusOr<Statement> Prepare(absl::string_view sql);
  // False once SQLite has rolled a transaction back by itself (disk full).
  bool InTransaction() const;

  sqlite3* get() const { return db_.get(); }
  sqlite3* release() { return db_.release(); }

 private:
  struct Deleter {
    void operator()(sqlite3* db) const;
  };
  explicit Database(sqlite3* db) : db_(db) {}
  std::unique_ptr<sqlite3, Deleter> db_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SQLITE_H_
