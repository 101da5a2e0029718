#ifndef CADRE_WORKER_COMM_RENDEZVOUS_STORE_H_
#define CADRE_WORKER_COMM_RENDEZVOUS_STORE_H_

// Where the ranks of one attempt leave what their peers need to meet them
// (socket addresses, an NCCL id). A key is set once, by one rank. The worker
// daemon implements it over Sync; the in-memory twin serves ranks that are
// threads of one process.

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

// Thread-safe.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Waits until the key is set: DEADLINE_EXCEEDED naming the key after
  // `timeout`, ABORTED when the attempt ends meanwhile.
  virtual absl::StatusOr<std::string> Get(absl::string_view key,
                                          absl::Duration timeout) = 0;
};

class InMemoryStore final : public KeyValueStore {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;
  // Makes waiting and later calls fail with ABORTED.
  void Abort();

 private:
  std::mutex mutex_;  // std: ThreadSanitizer sees it, absl::Mutex it does not
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  bool aborted_ = false;
};

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_RENDEZVOUS_STORE_H_
