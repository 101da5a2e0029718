#ifndef CADRE_COORDINATOR_JOURNAL_H_
#define CADRE_COORDINATOR_JOURNAL_H_

// The coordinator's memory across crashes: state.db (SQLite, WAL,
// synchronous=FULL). One thread owns the only writing connection. It takes the
// queued mutations, up to 64 at once, into one transaction with a savepoint
// each, and for each runs decide -> commit -> publish -> reply:
//
//   decide   on the writer thread, in order; reads the working state, writes
//            rows through the Store, then changes the working state. An error
//            undoes its rows only: it must come before it changes the working
//            state.
//   commit   of the whole group, on disk when it returns.
//   publish  the hook of Options: committed state becomes visible.
//   done     with decide's error or the outcome of the commit.
//
// What kill -9 leaves: before the commit nothing happened; after it everything
// did. A full disk undoes the group, calls the rollback hook, frees the ballast
// and decides once more; if that fails too, done gets RESOURCE_EXHAUSTED
// (STATE_DISK_FULL). A decide may therefore run twice. Any other failure of the
// disk
// ends the process, since memory must never run ahead of the disk.
//
// Submit is thread-safe.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/metrics/registry.h"
#include "coordinator/store.h"

namespace cadre::coordinator {

struct Mutation {
  std::function<absl::Status(Store&)> decide;
  std::function<void(const absl::Status&)> done;  // may be empty
};

class Journal {
 public:
  struct Options {
    std::string state_dir;  // made if absent; on local storage
    Clock* clock = nullptr;
    IdSource* ids = nullptr;
    MetricsRegistry* metrics = nullptr;
    int64_t ballast_bytes = 0;  // see disk_guard.h
    // Of the election that made this process the active one; 0: there is none.
    // Every transaction checks that the state has no later term, and asks
    // may_write just before its commit: a process that was cut off writes
    // nothing, and ends.
    int64_t term = 0;
    std::function<bool()> may_write;
  };
  struct Hooks {
    std::function<void()> publish;   // after each commit, before done
    std::function<void()> rollback;  // the working state must be made anew
  };

  // Locks the folder (FAILED_PRECONDITION, STATE_IN_USE while another
  // coordinator has it; STALE_TERM when the state is of a later one), migrates
  // the tables and starts a new generation.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const Options& options);
  ~Journal();  // Stop
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // For loading, before Start.
  Store& store();
  // Starts the writer thread.
  void Start(Hooks hooks);
  void Submit(Mutation mutation);
  // Finishes what is queued, truncates the WAL and closes; later mutations get
  // UNAVAILABLE.
  void Stop();

  // A connection of its own that only reads, for one other thread.
  absl::StatusOr<Database> OpenReader() const;

  // No new work is to be taken. Look at the disk now and then.
  bool disk_full() const;
  void LookAtDisk();

  int64_t generation() const { return generation_; }
  const std::string& cluster_uuid() const { return cluster_uuid_; }

 private:
  struct Impl;
  Journal();
  std::unique_ptr<Impl> impl_;
  int64_t generation_ = 0;
  std::string cluster_uuid_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_JOURNAL_H_
