#ifndef CADRE_COORDINATOR_WATCH_H_
#define CADRE_COORDINATOR_WATCH_H_

// Streams of a job's events. A watch is a cursor over the events table, moved
// by one thread for all of them and woken by commits; a slow reader costs no
// memory, since its next message is made only when the last one is gone.
// Thread-safe.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "base/clock.h"
#include "cadre/v1/job_service.pb.h"
#include "coordinator/job_table.h"
#include "coordinator/store.h"

namespace cadre::coordinator {

// Where a watch's messages go. Called from the hub's thread only; one Send at a
// time, the next after Ready. End is the last call.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  virtual void Send(const v1::WatchJobResponse& message) = 0;
  virtual void End(const absl::Status& status) = 0;

  // The watch's key in the hub; set before the first Send.
  std::atomic<int64_t> key{0};
};

class WatchHub {
 public:
  // `reader` is a connection of its own to the journal.
  WatchHub(const JobTable* table, Clock* clock, Database reader);
  ~WatchHub();  // Stop
  WatchHub(const WatchHub&) = delete;
  WatchHub& operator=(const WatchHub&) = delete;

  // Begins a watch. The sink must live until its End.
  void Add(const v1::WatchJobRequest& request, WatchSink* sink);
  // The last message is gone.
  void Ready(int64_t key);
  // The reader has left; End follows.
  void Cancel(int64_t key);
  // Something was committed.
  void Wake();
  // Ends all watches with UNAVAILABLE, also those added later.
  void Stop();

 private:
  struct Watch;
  void Run();
  // SEQUENCE_TRIMMED if events after that sequence are no longer kept.
  absl::Status CheckGap(const std::string& id, int64_t after);
  // One step of a watch; false when it has ended.
  bool Advance(int64_t key, Watch& watch);

  const JobTable* const table_;
  Clock* const clock_;
  Database reader_;
  Store store_;
  // std and not absl: a timed wait on the monotonic clock. It guards the rest.
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  bool stopping_ = false;
  int64_t next_key_ = 1;
  std::map<int64_t, std::shared_ptr<Watch>> watches_;
  std::thread thread_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_WATCH_H_
