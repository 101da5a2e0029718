#ifndef CADRE_KERNELS_COMMON_THREAD_POOL_H_
#define CADRE_KERNELS_COMMON_THREAD_POOL_H_

// A fixed set of threads for the CPU backend's loops. The calling thread works
// too, so a pool of 1 starts no thread. One ParallelFor at a time per pool
// (CADRE_CHECK); nested calls run inline. std::mutex, so that ThreadSanitizer
// sees it.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cadre {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls piece(0) ... piece(num_pieces - 1), each once, in any order and on
  // any thread; returns when all are done.
  void Run(int64_t num_pieces, const std::function<void(int64_t)>& piece);

 private:
  void Work();
  void Drain(const std::function<void(int64_t)>& piece);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* piece_ = nullptr;  // null: no work
  int64_t num_pieces_ = 0, next_ = 0, finished_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_THREAD_POOL_H_
