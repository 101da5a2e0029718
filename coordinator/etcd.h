#ifndef CADRE_COORDINATOR_ETCD_H_
#define CADRE_COORDINATOR_ETCD_H_

// A key of etcd (version 3) that at most one process holds, under a lease that
// ends unless it is renewed. Each call goes to the endpoints in turn, from the
// one that answered last, until one answers or the time is over. Thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::coordinator {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // "host:port"
  // In PEM; without `ca_file` in plaintext.
  std::string ca_file, certificate_file, key_file;
};

class Etcd {
 public:
  // INVALID_ARGUMENT for an address that is none. Connects with the first call.
  static absl::StatusOr<std::unique_ptr<Etcd>> Connect(
      const EtcdOptions& options);
  ~Etcd();

  // The errors are gRPC's, with the endpoint: UNAVAILABLE or DEADLINE_EXCEEDED
  // when none answered within `timeout`.
  absl::StatusOr<int64_t> GrantLease(absl::Duration ttl,
                                     absl::Duration timeout);
  // NOT_FOUND: the lease is gone.
  absl::Status KeepAlive(int64_t lease, absl::Duration timeout);
  absl::Status Revoke(int64_t lease, absl::Duration timeout);

  struct Claimed {
    bool won = false;
    // Won: of this claim; higher than of any before.
    int64_t term = 0;
    std::string holder;  // the value of who has it, if not won
  };
  // Makes the key with `value` under the lease, unless it exists. A key that
  // exists under this very lease is won, too: an answer was lost.
  absl::StatusOr<Claimed> Claim(const std::string& key,
                                const std::string& value, int64_t lease,
                                absl::Duration timeout);

 private:
  struct Impl;
  explicit Etcd(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ETCD_H_
