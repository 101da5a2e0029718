#ifndef CADRE_WORKER_DAEMON_H_
#define CADRE_WORKER_DAEMON_H_

// A running worker: device, metrics and health endpoints, agent and sessions,
// wired together. Movable; one per process (its metrics server is).

#include <memory>

#include "absl/status/statusor.h"
#include "worker/agent.h"
#include "worker/options.h"

namespace cadre {

class WorkerDaemon {
 public:
  // UNAVAILABLE: an address is in use now. Other errors are wrong
  // configurations, such as a device that is not there. A coordinator that does
  // not answer is none; it is waited for.
  static absl::StatusOr<WorkerDaemon> Start(const WorkerOptions& options);
  WorkerDaemon(WorkerDaemon&&) noexcept;
  WorkerDaemon& operator=(WorkerDaemon&&) noexcept;
  ~WorkerDaemon();

  // See Agent. Any thread.
  void Drain();
  int64_t rounds() const;
  void Abort();
  AgentExit Wait();

 private:
  struct Impl;
  explicit WorkerDaemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DAEMON_H_
