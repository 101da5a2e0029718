#include "coordinator/backup.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> One(Database& db, const std::string& sql) {
  CADRE_ASSIGN_OR_RETURN(Statement query, db.Prepare(sql));
  CADRE_ASSIGN_OR_RETURN(const bool row, query.Step());
  return row ? query.Text(0) : std::string();
}

absl::Status Copy(const std::string& from, const std::string& to) {
  CADRE_ASSIGN_OR_RETURN(Database source,
                         Database::Open(from, Database::Mode::kReadOnly));
  CADRE_ASSIGN_OR_RETURN(Database target,
                         Database::Open(to, Database::Mode::kReadWrite));
  sqlite3_backup* copy =
      sqlite3_backup_init(target.get(), "main", source.get(), "main");
  if (copy == nullptr) {
    return absl::InternalError(
        absl::StrCat("backup to ", to, ": ", sqlite3_errmsg(target.get())));
  }
  // All pages in one read transaction: a writer cannot make it start again.
  const int rc = sqlite3_backup_step(copy, -1);
  sqlite3_backup_finish(copy);
  if (rc == SQLITE_DONE) {
    // A file that stands alone, without a WAL beside it.
    return target.Exec("PRAGMA journal_mode = DELETE");
  }
  const std::string message =
      absl::StrCat("backup to ", to, ": ", sqlite3_errstr(rc));
  return rc == SQLITE_FULL ? absl::ResourceExhaustedError(message)
                           : absl::InternalError(message);
}

absl::Status SyncToDisk(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path, errno);
  const int rc = fsync(fd);
  const int error = errno;
  close(fd);
  return rc == 0 ? absl::OkStatus() : FileError("fsync", path, error);
}

}  // namespace

absl::StatusOr<BackupInfo> CheckBackup(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, " is no file"));
  }
  BackupInfo info{.path = path};
  CADRE_ASSIGN_OR_RETURN(Database db,
                         Database::Open(path, Database::Mode::kReadOnly));
  CADRE_ASSIGN_OR_RETURN(const std::string verdict,
                         One(db, "PRAGMA integrity_check"));
  if (verdict != "ok") {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", verdict));
  }
  const auto generation =
      One(db, "SELECT value FROM meta WHERE key = 'generation'");
  if (!generation.ok() || !absl::SimpleAtoi(*generation, &info.generation)) {
    return absl::DataLossError(
        absl::StrCat(path, " is no state of a coordinator"));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string jobs,
                         One(db, "SELECT count(*) FROM jobs"));
  (void)absl::SimpleAtoi(jobs, &info.jobs);
  info.bytes = static_cast<int64_t>(fs::file_size(path, error));
  return info;
}

absl::StatusOr<BackupInfo> BackUp(const std::string& state_dir,
                                  const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat("backup: there is a file ", path, "; choose another"));
  }
  const std::string partial = absl::StrCat(path, ".partial");
  fs::remove(partial, error);
  auto remove = absl::MakeCleanup([&] {
    std::error_code ignored;
    fs::remove(partial, ignored);
  });
  CADRE_RETURN_IF_ERROR(Copy(absl::StrCat(state_dir, "/state.db"), partial));
  CADRE_ASSIGN_OR_RETURN(BackupInfo info, CheckBackup(partial));
  CADRE_RETURN_IF_ERROR(SyncToDisk(partial));
  fs::rename(partial, path, error);
  if (error) return FileError("rename", partial, error.value());
  std::move(remove).Cancel();
  info.path = path;
  return info;
}

absl::StatusOr<BackupInfo> BackUpInto(const std::string& state_dir,
                                      const std::string& dir, int keep) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return FileError("create", dir, error.value());
  const std::string stem = absl::StrCat(
      dir, "/state-",
      absl::FormatTime("%Y%m%dT%H%M%E6SZ", absl::Now(), absl::UTCTimeZone()));
  CADRE_ASSIGN_OR_RETURN(BackupInfo info,
                         BackUp(state_dir, absl::StrCat(stem, ".db")));
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "state-") && absl::EndsWith(name, ".db")) {
      all.push_back(entry.path().string());
    }
  }
  // The names are times.
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i + std::max(1, keep) < all.size(); ++i) {
    fs::remove(all[i], error);
  }
  return info;
}

absl::StatusOr<BackupInfo> Restore(const std::string& path,
                                   const std::string& state_dir) {
  CADRE_RETURN_IF_ERROR(CheckBackup(path).status());
  std::error_code error;
  fs::create_directories(state_dir, error);
  if (error) return FileError("create", state_dir, error.value());
  const std::string lock_path = absl::StrCat(state_dir, "/lock");
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return FileError("open", lock_path, errno);
  const auto unlock = absl::MakeCleanup([lock] { close(lock); });
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a coordinator runs on ", state_dir, "; stop it before a restore"));
  }
  const std::string state = absl::StrCat(state_dir, "/state.db");
  const std::string fresh = absl::StrCat(state, ".restoring");
  fs::remove(fresh, error);
  CADRE_RETURN_IF_ERROR(Copy(path, fresh));
  {
    CADRE_ASSIGN_OR_RETURN(Database db,
                           Database::Open(fresh, Database::Mode::kReadWrite));
    CADRE_RETURN_IF_ERROR(db.Exec(
        absl::StrCat("UPDATE meta SET value = CAST(value AS INTEGER) + ",
                     kRestoreJump, " WHERE key = 'generation'")));
  }
  CADRE_RETURN_IF_ERROR(SyncToDisk(fresh));
  // The former state stays, with its WAL: it may hold the newest commits.
  if (fs::exists(state, error)) {
    const std::string aside = absl::StrCat(state, ".before-restore-",
                                           absl::ToUnixMicros(absl::Now()));
    for (const char* suffix : {"-wal", "-shm", ""}) {
      if (!fs::exists(state + suffix, error)) continue;
      fs::rename(state + suffix, aside + suffix, error);
      if (error) return FileError("rename", state + suffix, error.value());
    }
  }
  fs::rename(fresh, state, error);
  if (error) return FileError("rename", fresh, error.value());
  CADRE_RETURN_IF_ERROR(SyncToDisk(state_dir));
  return CheckBackup(state);
}

}  // namespace cadre::coordinator
