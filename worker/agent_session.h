#ifndef CADRE_WORKER_AGENT_SESSION_H_
#define CADRE_WORKER_AGENT_SESSION_H_

// The attempt that an agent runs, for the files that implement Agent. Owned by
// the agent; what is not said otherwise is its thread's alone.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "worker/agent.h"

namespace cadre {

struct Agent::Session {
  Session(const cadre::v1::DesiredRun& run, ReportBuffer* reports,
          std::function<void()> changed)
      : job(run.assignment().job()),
        digest(run.assignment_digest()),
        link(run.attempt_epoch(), reports, std::move(changed)) {}

  const std::string job;
  const std::string digest;
  SessionLink link;
  std::thread thread;
  // Monotonic time of the first order to stop NOW.
  std::optional<absl::Duration> told_to_stop;
  bool stuck_reported = false;
  // Set by the session's thread as its last action.
  std::atomic<bool> returned{false};
};

// Exit code of a configuration that is wrong: a supervisor must not start the
// process again.
inline constexpr int kAgentExitConfig = 78;
// The device failed, and this process's context with it may be lost for good:
// the supervisor starts a new one.
inline constexpr int kAgentExitDevice = 71;

}  // namespace cadre

#endif  // CADRE_WORKER_AGENT_SESSION_H_
