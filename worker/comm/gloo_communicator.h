#ifndef CADRE_WORKER_COMM_GLOO_COMMUNICATOR_H_
#define CADRE_WORKER_COMM_GLOO_COMMUNICATOR_H_

// Communicator of CPU processes over TCP (Gloo's transport). The algorithms
// are our own: blocks are exchanged directly and summed in rank order, so every
// rank holds the same bits and LocalCommunicator gives the same ones. Gloo's
// class-based algorithms are never run: they shrink the socket buffers.
//
// Sets SIGPIPE to be ignored where it has its default action (a lost peer would
// end the process). Split exchanges addresses over the parent's connections;
// only the world needs the store.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rendezvous_store.h"

namespace cadre {

struct GlooCommunicatorOptions {
  int rank = 0;
  int size = 1;
  // Address or host name this rank listens on and its peers connect to. Empty:
  // `interface` decides; both empty: what the host name resolves to.
  std::string bind_address;
  std::string interface;  // for example "eth0"
  // Put in front of every store key; must differ between attempts, since keys
  // are set once ("jobs/j/attempt-3/").
  std::string key_prefix;
  absl::Duration timeout = absl::Seconds(60);  // of each call
  absl::Duration rendezvous_timeout = absl::Seconds(300);
};

// Meets the peers through `store` (used only during the call). UNAVAILABLE or
// DEADLINE_EXCEEDED naming the missing rank.
absl::StatusOr<std::unique_ptr<Communicator>> CreateGlooCommunicator(
    const GlooCommunicatorOptions& options, KeyValueStore* store);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_GLOO_COMMUNICATOR_H_
