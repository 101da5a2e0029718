#ifndef CADRE_WORKER_COMM_GLOO_RENDEZVOUS_H_
#define CADRE_WORKER_COMM_GLOO_RENDEZVOUS_H_

// How Gloo's contexts find their sockets and each other. Implementation detail
// of gloo_communicator.cc.

#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre::gloo_rendezvous {

// Gloo asks a store for addresses through this: `set` with the rank's own under
// its number, then `get` once per peer. It also exchanges host names under
// "rank_N" to number the ranks of a host, which nothing here reads; those keys
// stop here. Gloo wants exceptions; status() keeps what they were.
class AddressBook final : public gloo::rendezvous::Store {
 public:
  using Publish = std::function<absl::Status(const std::string& value)>;
  using Lookup = std::function<absl::StatusOr<std::string>(int rank)>;

  AddressBook(Publish publish, Lookup lookup);

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  // get waits
  void wait(const std::vector<std::string>& keys) override {}
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {}

  const absl::Status& status() const { return status_; }

 private:
  void Check(const absl::Status& status);

  const Publish publish_;
  const Lookup lookup_;
  absl::Status status_;
};

// Listens on `bind_address`, else on `interface`, else on what the host's name
// stands for. Ignores SIGPIPE from then on.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateDevice(
    const std::string& bind_address, const std::string& interface);

}  // namespace cadre::gloo_rendezvous

#endif  // CADRE_WORKER_COMM_GLOO_RENDEZVOUS_H_
