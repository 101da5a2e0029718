#include "coordinator/work_pool.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace cadre::coordinator {

WorkPool::WorkPool(int num_threads, int nice) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, nice] {
      // On Linux a nice value belongs to the thread.
      if (nice != 0) setpriority(PRIO_PROCESS, syscall(SYS_gettid), nice);
      Run();
    });
  }
}

WorkPool::~WorkPool() { Stop(); }

void WorkPool::Stop() {
  std::deque<Item> left;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    left.swap(queue_);
  }
  for (Item& item : left) {
    if (item.dropped) item.dropped();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkPool::Add(std::function<void()> work, std::function<void()> dropped) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      queue_.push_back({std::move(work), std::move(dropped)});
      return;
    }
  }
  if (dropped) dropped();
}

void WorkPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) return;
      work = std::move(queue_.front().work);
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace cadre::coordinator
