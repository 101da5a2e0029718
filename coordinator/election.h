#ifndef CADRE_COORDINATOR_ELECTION_H_
#define CADRE_COORDINATOR_ELECTION_H_

// Which of several coordinators is active: the one that holds a key of etcd.
// The holder renews its lease from a thread of its own. By its own clock,
// counted from before each renewal was sent, the lease ends here before it ends
// in etcd, so two never believe at a time that they hold it; the journal asks
// before every commit. Thread-safe.
//
//   ASSIGN_OR_RETURN(auto election, Election::Make(options));
//   ASSIGN_OR_RETURN(const int64_t term, election->Campaign(&stop));
//   ... election->Holds() ...

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cadre/config/v1/coordinator.pb.h"
#include "coordinator/etcd.h"

namespace cadre::coordinator {

struct ElectionOptions {
  config::v1::Election config;
  // Written to the key, for people: "host:port" of this coordinator's API.
  std::string name;
  Clock* clock = Clock::Real();
  // The lease is over while it was held; called once, from the renewing thread.
  std::function<void(const absl::Status&)> on_lost;
};

class Election {
 public:
  // What Make checks before it connects.
  static absl::Status CheckConfig(const config::v1::Election& config);
  static absl::StatusOr<std::unique_ptr<Election>> Make(
      const ElectionOptions& options);
  // Resigns if it still holds.
  ~Election();
  Election(const Election&) = delete;
  Election& operator=(const Election&) = delete;

  // Blocks until this process holds the key, and answers with its term, which
  // is higher than any before. While etcd does not answer it goes on asking.
  // CANCELLED once `stop` is set by another thread.
  absl::StatusOr<int64_t> Campaign(const std::atomic<bool>* stop);

  // The lease is certainly still ours.
  bool Holds() const;

  // Gives the key back, so that another takes over at once. Nothing may be
  // written after it.
  void Resign();

 private:
  Election(const ElectionOptions& options, absl::Duration ttl,
           std::unique_ptr<Etcd> etcd);
  void Renew();

  const ElectionOptions options_;
  const absl::Duration ttl_;
  const std::string key_;
  const std::unique_ptr<Etcd> etcd_;
  int64_t lease_ = 0;
  // Monotonic, in nanoseconds; 0: not held.
  std::atomic<int64_t> held_until_ns_{0};
  // std and not absl: a timed wait on the monotonic clock.
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread renewer_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ELECTION_H_
