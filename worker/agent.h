#ifndef CADRE_WORKER_AGENT_H_
#define CADRE_WORKER_AGENT_H_

// The worker's side of Sync. One thread tells the coordinator the full state of
// this worker, again and again, and carries out the desired state that comes
// back: starts a session for an assignment, passes orders on to it, drops it.
// Training runs on the session's own thread and never delays a heartbeat.
//
// Three fences: an answer of a lower generation than one seen before is
// ignored; a process that another one has replaced is told to leave; orders for
// another attempt than the present one have no effect on it.
//
//   Agent agent(options, channel, body, &metrics);
//   agent.Start();
//   ... on SIGTERM: agent.Drain(); on the second: agent.Abort();
//   return agent.Wait().exit_code;
//
// Thread-safe.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timeouts.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/report_buffer.h"
#include "worker/session_link.h"
#include "worker/worker_metrics.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace cadre {

// Sync's wire version; the coordinator takes this one and the one before.
inline constexpr int kSyncProtocolVersion = 1;

// One attempt, from prepare to Ended; runs on a thread of its own. Must call
// link->SetEnded before it returns and react to link->stop_mode().
using SessionBody = std::function<void(const cadre::v1::Assignment& assignment,
                                       SessionLink* link)>;

struct AgentOptions {
  std::string worker_id;
  std::string incarnation;  // random per process
  std::string build;
  cadre::v1::Device device;
  Timeouts timeouts;
  // Pause after a failed Sync, doubled each time, with jitter.
  absl::Duration min_backoff = absl::Milliseconds(200);
  absl::Duration max_backoff = absl::Seconds(2);
  // Not owned.
  Clock* clock = Clock::Real();
  // A session told to stop NOW must be back after this time. A GPU's collective
  // can hang in its abort; a CPU's thread comes back when it has finished what
  // it computes, so give that one a step's time.
  absl::Duration stuck_limit = absl::Seconds(5);
  // Called when it is not: the process must leave, since its thread cannot be
  // ended.
  std::function<void()> on_stuck;
};

struct AgentExit {
  int exit_code = 0;
  std::string reason;
};

class Agent {
 public:
  // `metrics` is not owned.
  Agent(AgentOptions options, std::shared_ptr<grpc::Channel> channel,
        SessionBody body, WorkerMetrics* metrics);
  // Aborts and waits for the threads.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  void Start();

  // Takes no more work, has the present job saved and moved, then ends with
  // exit code 0. After drain_deadline it ends without.
  void Drain();
  // Ends soon, without a save.
  void Abort();

  // Grows with every round of the agent's thread, answered or not: a sign of
  // life.
  int64_t rounds() const { return rounds_; }

  // Blocks until the agent has ended.
  AgentExit Wait();

 private:
  struct Session;

  void Run();
  cadre::v1::SyncRequest MakeRequest();
  // One call; true if the coordinator answered and the answer counts.
  bool SyncOnce();
  void Apply(const cadre::v1::SyncResponse& response);
  void ApplyRun(const cadre::v1::SyncResponse& response);
  void HandleError(const absl::Status& status);
  void CheckOrphan();
  // Ends and forgets the session; true once there is none.
  bool DropSession(const std::string& reason);
  void StartSession(const cadre::v1::DesiredRun& run);
  void CheckStuck();
  // After a failure of the device the process leaves, as if drained: a new one
  // has a new context.
  void CheckDevice();
  void CheckDrain();
  void Leave(int exit_code, const std::string& reason);
  void Kick();
  void Pause(absl::Duration limit, bool may_kick);

  const AgentOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const SessionBody body_;
  WorkerMetrics* const metrics_;
  ReportBuffer reports_;
  std::atomic<int64_t> rounds_{0};

  // Only the agent's thread touches these.
  std::unique_ptr<Session> session_;
  std::string cluster_uuid_;
  int64_t generation_ = 0;
  int64_t sync_seq_ = 0;
  bool connected_ = false;
  bool ever_connected_ = false;
  std::string last_error_;
  int num_failures_ = 0;
  absl::Duration next_sync_;
  absl::Duration last_answer_;                 // monotonic
  std::optional<absl::Duration> drain_since_;  // monotonic
  bool idle_while_draining_acknowledged_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool draining_ = false;
  AgentExit drained_{0, "drained"};  // how the agent leaves then
  bool aborting_ = false;
  bool kicked_ = false;
  grpc::ClientContext* call_ = nullptr;  // the Sync under way
  std::optional<AgentExit> exit_;

  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_AGENT_H_
