#ifndef CADRE_COORDINATOR_WORK_POOL_H_
#define CADRE_COORDINATOR_WORK_POOL_H_

// A few threads for work that reads files, so that no RPC handler blocks.
// Thread-safe.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace cadre::coordinator {

class WorkPool {
 public:
  // nice: scheduling priority of the threads as in nice(2); 0 is normal.
  WorkPool(int num_threads, int nice);
  ~WorkPool();  // Stop
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Drops what is queued, waits for what runs. Work added later is dropped.
  void Stop();

  // `dropped` is called instead of `work` if the pool ends first.
  void Add(std::function<void()> work, std::function<void()> dropped = nullptr);

 private:
  void Run();

  absl::Mutex mutex_;
  struct Item {
    std::function<void()> work, dropped;
  };
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_WORK_POOL_H_
