#include "coordinator/wal_checkpoints.h"

#include <sqlite3.h>

#include <utility>

#include "base/logging.h"

namespace cadre::coordinator {
namespace {

// Waits neither for readers nor for the writer. What it cannot copy stays in
// the log, where it is just as safe.
void Copy(sqlite3* db) {
  const int rc = sqlite3_wal_checkpoint_v2(
      db, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  if (rc != SQLITE_OK && rc != SQLITE_BUSY) {
    CADRE_LOG(WARNING) << "the journal's log stays as long as it is: "
                       << sqlite3_errmsg(db);
  }
}

}  // namespace

WalCheckpoints::WalCheckpoints(std::string path, Database* writer, int pages)
    : path_(std::move(path)), writer_(writer), pages_(pages), copy_at_(pages) {
  sqlite3_wal_hook(
      writer_->get(),
      [](void* self, sqlite3*, const char*, int logged) {
        auto* const checkpoints = static_cast<WalCheckpoints*>(self);
        if (logged < checkpoints->logged_) {  // begun anew
          checkpoints->copy_at_ = checkpoints->pages_;
        }
        checkpoints->logged_ = logged;
        return SQLITE_OK;
      },
      this);
  thread_ = std::thread([this] { Run(); });
}

WalCheckpoints::~WalCheckpoints() {
  {
    absl::MutexLock lock(&mutex_);
    phase_ = Phase::kStopping;
  }
  thread_.join();
  sqlite3_wal_hook(writer_->get(), nullptr, nullptr);
}

void WalCheckpoints::AfterCommit() {
  {
    absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kIdle && logged_ >= copy_at_) {
      copy_at_ = logged_ + pages_;
      phase_ = Phase::kCopying;
    }
    if (phase_ != Phase::kCopied) return;
    phase_ = Phase::kIdle;
  }
  Copy(writer_->get());
}

void WalCheckpoints::Run() {
  auto db = Database::Open(path_, Database::Mode::kReadWrite);
  if (!db.ok()) {
    CADRE_LOG(WARNING) << "the journal's log is copied by its writer: "
                       << db.status().ToString();
  }
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return phase_ == Phase::kCopying || phase_ == Phase::kStopping;
  };
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&due));
    if (phase_ == Phase::kStopping) return;
    mutex_.Unlock();
    if (db.ok()) Copy(db->get());
    mutex_.Lock();
    if (phase_ == Phase::kCopying) phase_ = Phase::kCopied;
  }
}

}  // namespace cadre::coordinator
