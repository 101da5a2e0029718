#include "worker/moe/exchange_queue.h"

#include <chrono>
#include <utility>

namespace cadre {
namespace {

// Adds the time of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    *seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_)
            .count();
  }

 private:
  double* const seconds_;
  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};

}  // namespace

ExchangeQueue::ExchangeQueue(bool threaded) {
  if (threaded) thread_ = std::thread([this] { Work(); });
}

ExchangeQueue::~ExchangeQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

ExchangeQueue::Ticket ExchangeQueue::Launch(
    std::function<absl::Status()> collective) {
  if (!thread_.joinable()) {
    const Stopwatch stopwatch(&exposed_seconds_);
    if (status_.ok()) status_ = collective();
    finished_ = ++launched_;
    return launched_;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(collective));
    ++launched_;
  }
  wake_.notify_one();
  return launched_;
}

absl::Status ExchangeQueue::Wait(Ticket ticket) {
  const Stopwatch stopwatch(&exposed_seconds_);
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return finished_ >= ticket; });
  return status_;
}

absl::Status ExchangeQueue::Drain() { return Wait(launched_); }

double ExchangeQueue::TakeExposedSeconds() {
  return std::exchange(exposed_seconds_, 0.0);
}

void ExchangeQueue::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<absl::Status()> collective =
        std::move(waiting_.front());
    waiting_.pop_front();
    absl::Status status = status_;
    if (status.ok()) {
      lock.unlock();
      status = collective();
      lock.lock();
    }
    if (status_.ok()) status_ = std::move(status);
    ++finished_;
    done_.notify_all();
  }
}

}  // namespace cadre
