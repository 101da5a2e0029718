#include "kernels/common/thread_pool.h"

#include <algorithm>

#include "base/logging.h"
#include "kernels/common/exec.h"

namespace cadre {
namespace {
// True on a thread that is inside a piece: a nested loop then runs inline.
thread_local bool inside_piece = false;
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i)
    threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t num_pieces,
                     const std::function<void(int64_t)>& piece) {
  if (num_pieces <= 0) return;
  if (threads_.empty() || num_pieces == 1 || inside_piece) {
    for (int64_t i = 0; i < num_pieces; ++i) piece(i);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CADRE_CHECK(piece_ == nullptr) << "two loops at once on one pool";
    piece_ = &piece;
    num_pieces_ = num_pieces;
    next_ = finished_ = 0;
    ++generation_;
  }
  wake_.notify_all();
  Drain(piece);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return finished_ == num_pieces_; });
  piece_ = nullptr;
}

void ThreadPool::Drain(const std::function<void(int64_t)>& piece) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (piece_ == &piece && next_ < num_pieces_) {
    const int64_t index = next_++;
    lock.unlock();
    inside_piece = true;
    piece(index);
    inside_piece = false;
    lock.lock();
    if (++finished_ == num_pieces_) done_.notify_all();
  }
}

void ThreadPool::Work() {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] {
      return stop_ || (piece_ != nullptr && generation_ != seen);
    });
    if (stop_) return;
    seen = generation_;
    const auto* piece = piece_;
    lock.unlock();
    Drain(*piece);
    lock.lock();
  }
}

void ParallelFor(const Exec& exec, int64_t n, int64_t grain,
                 const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  constexpr int64_t kMaxPieces = 64;
  const int64_t size =
      std::max(std::max<int64_t>(grain, 1), (n + kMaxPieces - 1) / kMaxPieces);
  const int64_t pieces = (n + size - 1) / size;
  auto piece = [&](int64_t i) { body(i * size, std::min(n, (i + 1) * size)); };
  if (exec.pool != nullptr) {
    exec.pool->Run(pieces, piece);
  } else {
    for (int64_t i = 0; i < pieces; ++i) piece(i);
  }
}

}  // namespace cadre
