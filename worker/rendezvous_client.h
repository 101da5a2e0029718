#ifndef CADRE_WORKER_RENDEZVOUS_CLIENT_H_
#define CADRE_WORKER_RENDEZVOUS_CLIENT_H_

// The store through which the ranks of an attempt meet, over Sync: what is set
// here travels with this worker's state, and the coordinator hands every rank
// what all have published. Thread-safe; the link must outlive it.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/session_link.h"

namespace cadre {

class RendezvousClient final : public KeyValueStore {
 public:
  // The coordinator takes no more than this from one rank.
  static constexpr int64_t kMaxBytes = 64 << 10;

  explicit RendezvousClient(SessionLink* link) : link_(link) {}

  // RESOURCE_EXHAUSTED beyond kMaxBytes in all.
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override;

 private:
  SessionLink* const link_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_RENDEZVOUS_CLIENT_H_
