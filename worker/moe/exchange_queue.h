#ifndef CADRE_WORKER_MOE_EXCHANGE_QUEUE_H_
#define CADRE_WORKER_MOE_EXCHANGE_QUEUE_H_

// Runs collectives in the order in which they are given: at once on the calling
// thread, or on a communication thread while the caller computes. Either way
// every rank issues the same ones in the same order, and results are the same
// bits. One thread calls it; the memory a collective uses must live until its
// ticket was waited for, or until Drain.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace cadre {

class ExchangeQueue {
 public:
  using Ticket = int64_t;

  // With `threaded`, starts a thread.
  explicit ExchangeQueue(bool threaded);
  // Waits for what was given.
  ~ExchangeQueue();
  ExchangeQueue(const ExchangeQueue&) = delete;
  ExchangeQueue& operator=(const ExchangeQueue&) = delete;

  Ticket Launch(std::function<absl::Status()> collective);
  // The first error so far, when everything up to the ticket is done. After an
  // error nothing more is run: the group is broken.
  absl::Status Wait(Ticket ticket);
  // As Wait for all that was given.
  absl::Status Drain();
  // Time that Launch and Wait held up the caller since the last call.
  double TakeExposedSeconds();

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::function<absl::Status()>> waiting_;
  int64_t launched_ = 0, finished_ = 0;
  absl::Status status_;  // the first error
  bool stop_ = false;
  double exposed_seconds_ = 0.0;
  std::thread thread_;
};

// Drains on destruction: no collective outlives the memory of its scope.
class ExchangeScope {
 public:
  explicit ExchangeScope(ExchangeQueue* queue) : queue_(queue) {}
  ~ExchangeScope() { queue_->Drain().IgnoreError(); }
  ExchangeScope(const ExchangeScope&) = delete;
  ExchangeScope& operator=(const ExchangeScope&) = delete;

 private:
  ExchangeQueue* const queue_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_EXCHANGE_QUEUE_H_
