#include "coordinator/journal.h"

#include <fcntl.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/disk_guard.h"
#include "coordinator/schema.h"
#include "coordinator/wal_checkpoints.h"

namespace cadre::coordinator {
namespace {

constexpr size_t kMaxGroup = 64;
constexpr int kLogPages = 1024;  // 4 MiB; see wal_checkpoints.h

absl::Status DiskFull(const absl::Status& cause) {
  return WithRetry(
      Error(absl::StatusCode::kResourceExhausted, "STATE_DISK_FULL",
            absl::StrCat("the disk of the coordinator's state is full: ",
                         cause.message(), "; free space, then retry")),
      absl::Seconds(30));
}

int64_t FileSize(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

}  // namespace

struct Journal::Impl {
  Options options;
  std::string path;
  int lock_fd = -1;
  std::unique_ptr<Database> db;
  std::unique_ptr<Store> store;
  std::unique_ptr<WalCheckpoints> checkpoints;
  std::unique_ptr<DiskGuard> guard;
  Hooks hooks;
  std::thread writer;
  absl::Mutex mutex;
  std::deque<Mutation> queue ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  prometheus::Histogram* commit_seconds = nullptr;
  prometheus::Histogram* batch = nullptr;
  std::unique_ptr<ScrapeHook> disk_hook;
  prometheus::Gauge* db_bytes = nullptr;
  prometheus::Gauge* wal_bytes = nullptr;

  ~Impl() {
    store.reset();
    checkpoints.reset();
    db.reset();
    if (lock_fd >= 0) close(lock_fd);
  }

  void Run();
  void CommitGroup(std::vector<Mutation> group);
  absl::Status TryGroup(std::vector<Mutation>& group,
                        std::vector<absl::Status>& outcomes);
  // Within a transaction: no coordinator of a later term was here.
  absl::Status CheckTerm();
  void Undo();
  void Measure();
};

absl::Status Journal::Impl::CheckTerm() {
  if (options.term == 0) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(const std::string text, store->GetMeta("term"));
  int64_t term = 0;
  if (!text.empty() && !absl::SimpleAtoi(text, &term)) {
    return absl::DataLossError(absl::StrCat("state.db: term is '", text, "'"));
  }
  if (term <= options.term) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, "STALE_TERM",
      absl::StrCat("this coordinator is of term ", options.term,
                   ", the state of term ", term, ": another has taken over"));
}

absl::Status Journal::Impl::TryGroup(std::vector<Mutation>& group,
                                     std::vector<absl::Status>& outcomes) {
  Failpoint("journal.before_begin");
  CADRE_RETURN_IF_ERROR(db->Exec("BEGIN IMMEDIATE"));
  CADRE_RETURN_IF_ERROR(CheckTerm());
  for (size_t i = 0; i < group.size(); ++i) {
    CADRE_RETURN_IF_ERROR(db->Exec("SAVEPOINT mutation"));
    outcomes[i] = group[i].decide(*store);
    // SQLite has undone the whole transaction by itself: the disk is full.
    if (!db->InTransaction()) return outcomes[i];
    if (!outcomes[i].ok()) {
      CADRE_RETURN_IF_ERROR(db->Exec("ROLLBACK TO mutation"));
    }
    CADRE_RETURN_IF_ERROR(db->Exec("RELEASE mutation"));
    Failpoint("journal.mid_batch");
  }
  Failpoint("journal.before_commit");
  if (options.may_write && !options.may_write()) {
    return absl::FailedPreconditionError(
        "the lease of the active coordinator is over");
  }
  CADRE_RETURN_IF_ERROR(db->Exec("COMMIT"));
  Failpoint("journal.after_commit");
  return absl::OkStatus();
}

void Journal::Impl::CommitGroup(std::vector<Mutation> group) {
  std::vector<absl::Status> outcomes(group.size());
  const absl::Duration start = options.clock->Monotonic();
  absl::Status committed = TryGroup(group, outcomes);
  if (absl::IsResourceExhausted(committed) && guard->Release()) {
    Undo();
    committed = TryGroup(group, outcomes);
  }
  commit_seconds->Observe(
      absl::ToDoubleSeconds(options.clock->Monotonic() - start));
  batch->Observe(static_cast<double>(group.size()));
  if (committed.ok()) {
    if (hooks.publish) hooks.publish();
    Measure();
    checkpoints->AfterCommit();
  } else {
    CADRE_CHECK(absl::IsResourceExhausted(committed))
        << "the journal cannot be written, and memory must not run ahead of "
           "it: "
        << committed.ToString();
    CADRE_LOG(ERROR) << "journal: " << committed.ToString();
    Undo();
    for (absl::Status& outcome : outcomes) outcome = DiskFull(committed);
  }
  Failpoint("journal.before_reply");
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].done) group[i].done(outcomes[i]);
  }
}

void Journal::Impl::Undo() {
  if (db->InTransaction()) db->Exec("ROLLBACK").IgnoreError();
  if (hooks.rollback) hooks.rollback();
}

void Journal::Impl::Measure() {
  db_bytes->Set(static_cast<double>(FileSize(path)));
  wal_bytes->Set(static_cast<double>(FileSize(path + "-wal")));
}

void Journal::Impl::Run() {
  while (true) {
    std::vector<Mutation> group;
    {
      absl::MutexLock lock(&mutex);
      const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex) {
        return stopping || !queue.empty();
      };
      mutex.Await(absl::Condition(&ready));
      if (queue.empty()) return;
      while (!queue.empty() && group.size() < kMaxGroup) {
        group.push_back(std::move(queue.front()));
        queue.pop_front();
      }
    }
    CommitGroup(std::move(group));
  }
}

Journal::Journal() : impl_(std::make_unique<Impl>()) {}
Journal::~Journal() { Stop(); }

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(options.state_dir, error);
  if (error) {
    return FileError("create state_dir", options.state_dir, error.value());
  }
  auto journal = std::unique_ptr<Journal>(new Journal);
  Impl& impl = *journal->impl_;
  impl.options = options;
  impl.path = absl::StrCat(options.state_dir, "/state.db");

  const std::string lock_path = absl::StrCat(options.state_dir, "/lock");
  impl.lock_fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (impl.lock_fd < 0) return FileError("open", lock_path, errno);
  if (flock(impl.lock_fd, LOCK_EX | LOCK_NB) != 0) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "STATE_IN_USE",
        absl::StrCat("state_dir ", options.state_dir,
                     " is in use by another coordinator; stop that one or "
                     "choose another folder with --state-dir"));
  }

  CADRE_ASSIGN_OR_RETURN(Database db,
                         Database::Open(impl.path, Database::Mode::kReadWrite));
  impl.db = std::make_unique<Database>(std::move(db));
  CADRE_RETURN_IF_ERROR(impl.db->Exec(
      "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
      // Checkpoints are made by wal_checkpoints.h.
      "PRAGMA wal_autocheckpoint = 0; PRAGMA foreign_keys = ON;"));
  CADRE_RETURN_IF_ERROR(Migrate(*impl.db, impl.path));
  impl.guard =
      std::make_unique<DiskGuard>(options.state_dir, options.ballast_bytes);
  impl.store = std::make_unique<Store>(impl.db.get());

  CADRE_RETURN_IF_ERROR(impl.db->Exec("BEGIN IMMEDIATE"));
  CADRE_RETURN_IF_ERROR(impl.CheckTerm());
  if (options.term > 0) {
    CADRE_RETURN_IF_ERROR(
        impl.store->PutMeta("term", absl::StrCat(options.term)));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string generation,
                         impl.store->GetMeta("generation"));
  if (!generation.empty() &&
      !absl::SimpleAtoi(generation, &journal->generation_)) {
    return absl::DataLossError(
        absl::StrCat("state.db: generation is '", generation, "'"));
  }
  ++journal->generation_;
  CADRE_ASSIGN_OR_RETURN(journal->cluster_uuid_,
                         impl.store->GetMeta("cluster_uuid"));
  if (journal->cluster_uuid_.empty()) {
    journal->cluster_uuid_ = options.ids->Uuid();
    CADRE_RETURN_IF_ERROR(
        impl.store->PutMeta("cluster_uuid", journal->cluster_uuid_));
  }
  CADRE_RETURN_IF_ERROR(
      impl.store->PutMeta("generation", absl::StrCat(journal->generation_)));
  CADRE_RETURN_IF_ERROR(impl.db->Exec("COMMIT"));

  impl.commit_seconds = &options.metrics->Histogram(metric::kJournalCommit);
  impl.batch = &options.metrics->Histogram(metric::kJournalBatch);
  impl.disk_hook = options.metrics->BeforeScrape(
      [guard = impl.guard.get(),
       free = &options.metrics->Gauge(metric::kJournalFree),
       writable = &options.metrics->Gauge(metric::kJournalWritable)] {
        guard->Measure();
        free->Set(static_cast<double>(guard->free_bytes()));
        writable->Set(guard->full() ? 0 : 1);
      });
  impl.db_bytes =
      &options.metrics->Gauge(metric::kJournalBytes, {{"file", "db"}});
  impl.wal_bytes =
      &options.metrics->Gauge(metric::kJournalBytes, {{"file", "wal"}});
  options.metrics->Gauge(metric::kGeneration)
      .Set(static_cast<double>(journal->generation_));
  return journal;
}

bool Journal::disk_full() const { return impl_->guard->full(); }
void Journal::LookAtDisk() { impl_->guard->Look(); }

Store& Journal::store() { return *impl_->store; }

void Journal::Start(Hooks hooks) {
  impl_->hooks = std::move(hooks);
  impl_->checkpoints =
      std::make_unique<WalCheckpoints>(impl_->path, impl_->db.get(), kLogPages);
  impl_->writer = std::thread([this] { impl_->Run(); });
}

void Journal::Submit(Mutation mutation) {
  {
    absl::MutexLock lock(&impl_->mutex);
    if (!impl_->stopping) {
      impl_->queue.push_back(std::move(mutation));
      return;
    }
  }
  if (mutation.done) mutation.done(ShuttingDown());
}

void Journal::Stop() {
  {
    absl::MutexLock lock(&impl_->mutex);
    if (impl_->stopping) return;
    impl_->stopping = true;
  }
  if (impl_->writer.joinable()) impl_->writer.join();
  if (impl_->db == nullptr) return;
  impl_->checkpoints.reset();
  sqlite3_wal_checkpoint_v2(impl_->db->get(), nullptr,
                            SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
}

absl::StatusOr<Database> Journal::OpenReader() const {
  return Database::Open(impl_->path, Database::Mode::kReadOnly);
}

}  // namespace cadre::coordinator
