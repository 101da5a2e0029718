#ifndef CADRE_BASE_RPC_HEALTH_SERVER_H_
#define CADRE_BASE_RPC_HEALTH_SERVER_H_

// The health service alone on an address of its own: what Kubernetes' native
// gRPC probes ask. Plaintext and without tokens on every address on purpose: it
// says nothing but serving or not, and probes have no credentials. Movable;
// its methods are thread-safe.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class HealthServer {
 public:
  // `address` is host:port, port 0 picks one; "off" serves nothing. `flag` is
  // named as the remedy when the address cannot be had. Live from the start,
  // ready once told.
  static absl::StatusOr<HealthServer> Start(absl::string_view address,
                                            absl::string_view flag);
  HealthServer(HealthServer&&) noexcept;
  HealthServer& operator=(HealthServer&&) noexcept;
  ~HealthServer();

  void SetReady(bool ready);
  // 0 when off.
  int port() const;

 private:
  struct Impl;
  HealthServer();
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_BASE_RPC_HEALTH_SERVER_H_
