#ifndef CADRE_WORKER_SESSION_LINK_H_
#define CADRE_WORKER_SESSION_LINK_H_

// What the session's thread and the agent's thread share about one attempt. The
// session writes how far it is and reads orders; the agent copies the state
// into each Sync and writes the orders down. Every call returns at once, except
// the Wait ones, which only the session's thread makes: the heartbeat never
// waits for training. Thread-safe; one object per attempt.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cadre/v1/worker_service.pb.h"
#include "plan/expert_placement.h"
#include "worker/report_buffer.h"

namespace cadre {

// Write the manifest of a checkpoint whose files are all on the store.
struct SealRequest {
  int64_t step = 0;
  std::vector<cadre::v1::SavedFile> files;
};

// Calls into a running engine; any thread may make them.
struct EngineHooks {
  std::function<void()> abort;
  std::function<int64_t()> step;
  std::function<int64_t()> collective_seq;
};

class SessionLink {
 public:
  using Target = cadre::v1::DesiredRun::Target;

  // `reports` must outlive the link. `changed` is called (without the lock)
  // after changes that the coordinator should hear of at once.
  SessionLink(int64_t attempt_epoch, ReportBuffer* reports,
              std::function<void()> changed);
  ~SessionLink();
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;

  // ---- called by the session's thread --------------------------------------
  void SetPreparing(const std::string& stage, int64_t done, int64_t total);
  void SetReady();
  // "train", "eval", "save" or "export".
  void SetPhase(const std::string& phase);
  void SetProgress(const cadre::v1::Progress& progress);
  void SetStepsDone();
  // Where the experts lie from now on; what was wanted up to there is done.
  void SetPlacement(std::shared_ptr<const ExpertPlacement> placement);
  // Newer than the one in force; null: none.
  std::shared_ptr<const ExpertPlacement> WantedPlacement() const;
  // The last word; later changes of state have no effect.
  void SetEnded(const cadre::v1::EndedState& ended);
  // Gives the report this attempt's epoch.
  void AddReport(cadre::v1::Report report);
  // For the peers; travels with each Sync.
  void Publish(const std::string& key, const std::string& value);
  int64_t published_bytes() const;

  // How the session was told to stop; unset: it was not. NOW is final.
  std::optional<cadre::v1::StopMode> stop_mode() const;
  std::string stop_reason() const;
  // What the agent may ask of the running engine. hooks.abort is called at most
  // once, on a thread of its own (abort of a communicator can hang, and the
  // heartbeat must not), when the session must stop NOW, so that a thread
  // inside a collective comes back. step and collective_seq are read with each
  // Sync.
  void Attach(EngineHooks hooks);
  // After it no hook runs any more; waits for an abort under way.
  void Detach();
  // Orders not yet carried out; each is handed out once.
  std::optional<SealRequest> TakeSeal();
  std::vector<std::string> TakeRemovals();

  enum class Wake { kTarget, kSeal, kStopCheckpoint, kStopNow, kDeadline };
  // Returns when the session must stop, a seal is wanted, or the coordinator
  // wants `target` or more, in this order of precedence. Without a target only
  // a stop NOW and a seal count: the session is saving already. The time runs
  // only while the coordinator answers.
  Wake Wait(std::optional<Target> target, absl::Duration limit);

  // What a peer has published under the key, once it is there.
  // DEADLINE_EXCEEDED names the key; ABORTED when told to stop NOW.
  absl::StatusOr<std::string> WaitForValue(const std::string& key,
                                           absl::Duration limit);

  // ---- called by the agent's thread ----------------------------------------
  // Copies the state into the request. A good end is told only when all reports
  // are accepted: whoever hears it may rely on the saves and results before it.
  // Bad ends are told at once.
  void FillState(cadre::v1::SyncRequest* request) const;
  void SetTarget(Target target);
  void SetRendezvous(const cadre::v1::Rendezvous& rendezvous);
  // A checkpoint stop never takes back a NOW.
  void RequestStop(cadre::v1::StopMode mode, const std::string& reason);
  void RequestSeal(SealRequest request);
  void RequestRemovals(const std::vector<std::string>& folders);
  // Refused (and said so in the log, once) where it belongs to another attempt,
  // is not newer than what is known, or has another shape.
  void RequestPlacement(const cadre::v1::ExpertPlacement& placement);
  void SetConnected(bool connected);

  bool ended() const;
  // Of the end; UNSPECIFIED before it, and where it was good.
  cadre::v1::FailureCause cause() const;
  int64_t attempt_epoch() const { return attempt_epoch_; }

 private:
  template <typename Change>
  void Update(bool announce, Change change);
  void StartAbort();  // mutex_ held, here and below
  bool HoldsEnd() const;
  void ReadHooks(cadre::v1::RunningState* running) const;

  const int64_t attempt_epoch_;
  ReportBuffer* const reports_;
  const std::function<void()> changed_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Only the state oneof is used.
  cadre::v1::SyncRequest state_, before_end_;
  std::map<std::string, std::string> published_;
  std::map<std::string, std::string> values_;
  Target target_ = cadre::v1::DesiredRun::TARGET_PREPARE;
  std::optional<cadre::v1::StopMode> stop_;
  std::string stop_reason_;
  EngineHooks hooks_;
  std::thread aborter_;
  std::optional<SealRequest> seal_;
  int64_t last_seal_step_ = -1;
  std::vector<std::string> removals_;
  std::shared_ptr<const ExpertPlacement> placement_, wanted_;
  int64_t refused_plan_epoch_ = -1;
  bool connected_ = true;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SESSION_LINK_H_
