#ifndef CADRE_WORKER_COMM_MONOTONIC_WAIT_H_
#define CADRE_WORKER_COMM_MONOTONIC_WAIT_H_

// Waiting on a std::condition_variable with a deadline that wall-clock jumps do
// not move. A wait on the steady clock itself becomes pthread_cond_clockwait,
// which ThreadSanitizer of GCC 12 does not know (it then reports false races),
// so the wait runs in short slices of the system clock.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace cadre {

using MonotonicTime = std::chrono::steady_clock::time_point;

// A year stands for "for ever": the sum must not overflow.
inline MonotonicTime DeadlineAfter(absl::Duration timeout) {
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
}

// True once done() holds, false when the deadline passed before.
template <typename Done>
bool WaitUntil(std::condition_variable& changed,
               std::unique_lock<std::mutex>& lock, MonotonicTime deadline,
               Done done) {
  while (!done()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return false;
    const std::chrono::nanoseconds slice = std::min<std::chrono::nanoseconds>(
        deadline - now, std::chrono::milliseconds(200));
    changed.wait_until(lock, std::chrono::system_clock::now() + slice);
  }
  return true;
}

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_MONOTONIC_WAIT_H_
