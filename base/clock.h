#ifndef CADRE_BASE_CLOCK_H_
#define CADRE_BASE_CLOCK_H_

// Time as a dependency, so that leases and deadlines are tested without
// sleeping. Thread-safe.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cadre {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time: for what a person reads. It may jump.
  virtual absl::Time Now() = 0;
  // Time since an arbitrary start; never jumps. Every lease, timeout and
  // duration is measured on it.
  virtual absl::Duration Monotonic() = 0;

  // The machine's clock; lives for ever.
  static Clock* Real();
};

// Stands still until told to advance.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'000'000'000))
      : start_(start) {}
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return start_ + elapsed_;
  }
  absl::Duration Monotonic() override {
    absl::MutexLock lock(&mutex_);
    return elapsed_;
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    elapsed_ += by;
  }

 private:
  const absl::Time start_;
  absl::Mutex mutex_;
  absl::Duration elapsed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre

#endif  // CADRE_BASE_CLOCK_H_
