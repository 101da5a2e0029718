#ifndef CADRE_WORKER_COMM_GLOO_LINKS_H_
#define CADRE_WORKER_COMM_GLOO_LINKS_H_

// Connections of one rank to all its peers over Gloo's transport, and the one
// thing that collectives do with them: to send and receive a piece per peer
// before a deadline. Knows nothing of sums. Owns the connections. Abort from
// any thread, the rest from one at a time. Implementation detail of
// gloo_communicator.cc.

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/gloo_rendezvous.h"
#include "worker/comm/monotonic_wait.h"

namespace cadre {

class GlooLinks {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    // A rank alone needs none.
    std::shared_ptr<gloo::transport::Device> device;
    absl::Duration timeout;  // of each exchange
    absl::Duration rendezvous_timeout;
    // What errors call the ranks: their numbers in the group that was split
    // first.
    std::vector<int> names;
  };
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Pieces {
    Piece send, recv;  // 0 bytes: nothing in that direction
  };

  explicit GlooLinks(Options options) : options_(std::move(options)) {}
  ~GlooLinks() { Close(); }
  GlooLinks(const GlooLinks&) = delete;
  GlooLinks& operator=(const GlooLinks&) = delete;

  const Options& options() const { return options_; }

  template <typename T>
  static Piece Bytes(T* data, int64_t n) {
    // Gloo takes one non-const pointer for both directions.
    return {const_cast<std::remove_const_t<T>*>(data), n * sizeof(T)};
  }

  // Once, before the first exchange.
  absl::Status Connect(gloo_rendezvous::AddressBook* book);

  // Sends and receives one piece per peer; returns when all have arrived and
  // left. Every call has a tag of its own, so the ranks make the same calls in
  // the same order. The error names the peer (peer_failure.h); after one the
  // connections are closed.
  absl::Status Exchange(const char* call,
                        absl::FunctionRef<Pieces(int peer)> pieces_of);

  // ABORTED once Abort was called.
  absl::Status Aborted();
  // Ends the exchange under way and all later ones.
  void Abort();

 private:
  using UnboundBuffer = gloo::transport::UnboundBuffer;

  absl::Status Failure(const char* call, int peer, MonotonicTime deadline,
                       const char* what) const;
  // For Abort to find, until Unregister.
  absl::Status Register(const char* call, UnboundBuffer* buffer);
  void Unregister();
  void Close();

  const Options options_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  uint64_t next_tag_ = 1;

  std::mutex mutex_;  // std: ThreadSanitizer sees it, absl::Mutex it does not
  bool aborted_ = false;
  std::vector<UnboundBuffer*> in_flight_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_GLOO_LINKS_H_
