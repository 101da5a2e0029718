#ifndef CADRE_COORDINATOR_WAL_CHECKPOINTS_H_
#define CADRE_COORDINATOR_WAL_CHECKPOINTS_H_

// Keeps the write-ahead log of a SQLite database short while its only writer
// goes on writing. Once the log has grown by `pages`, a thread with a
// connection of its own copies it into the database, beside commits and
// readers. What was committed meanwhile is little; the writer copies it itself,
// between two commits, and the next commit then begins the log anew, in the
// same place of the file, so that a commit seldom changes the file's size. A
// reader that keeps the log from beginning anew delays that to the next round.
//
// AfterCommit is for the thread that owns `writer`, which must outlive this.

#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {

class WalCheckpoints {
 public:
  // Takes the writer's WAL hook.
  WalCheckpoints(std::string path, Database* writer, int pages);
  ~WalCheckpoints();  // waits for a copy under way
  WalCheckpoints(const WalCheckpoints&) = delete;
  WalCheckpoints& operator=(const WalCheckpoints&) = delete;

  // Outside of a transaction.
  void AfterCommit();

 private:
  enum class Phase { kIdle, kCopying, kCopied, kStopping };

  void Run();

  const std::string path_;
  Database* const writer_;
  const int pages_;
  // Of the writer's thread: pages in the log, and at how many to copy it.
  int logged_ = 0;
  int copy_at_;
  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  std::thread thread_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_WAL_CHECKPOINTS_H_
