#ifndef CADRE_COORDINATOR_SERVER_H_
#define CADRE_COORDINATOR_SERVER_H_

// The coordinator as one object: journal, control, gRPC server.
//
//   MetricsRegistry metrics;
//   ASSIGN_OR_RETURN(Server server, Server::Start({.config = config,
//                                                  .metrics = &metrics,
//                                                  .data = checker.get()}));
//   ... server.port() ...
//   server.Shutdown(absl::Seconds(10));
//
// Movable; not thread-safe itself.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/metrics/registry.h"
#include "cadre/config/v1/coordinator.pb.h"
#include "coordinator/data_check.h"

namespace cadre::coordinator {

struct ServerOptions {
  config::v1::CoordinatorConfig config;
  // Required; both outlive the server.
  MetricsRegistry* metrics = nullptr;
  DataChecker* data = nullptr;
  Clock* clock = Clock::Real();
  IdSource* ids = IdSource::Random();
  // Told when the coordinator becomes able to take work, and when no longer
  // (its disk is full). May be empty.
  std::function<void(bool)> on_ready;
  // Time between rounds of judging and placing.
  absl::Duration tick_interval = absl::Milliseconds(100);
  // Of the election that made this coordinator the active one (election.h).
  int64_t term = 0;
  std::function<bool()> may_write;
};

class Server {
 public:
  // INVALID_ARGUMENT: the configuration; FAILED_PRECONDITION: an address or the
  // state folder is in use, or a plaintext address is not loopback.
  static absl::StatusOr<Server> Start(const ServerOptions& options);
  // What Start checks before it touches anything.
  static absl::Status CheckConfig(const config::v1::CoordinatorConfig& config);

  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  ~Server();  // Shutdown

  // Of the API.
  int port() const;
  // "host:port", with the port that was picked.
  std::string address() const;

  // Grows with every round of judging and placing: a sign of life.
  int64_t ticks() const;

  // Ends the streams, lets running calls finish until the deadline, closes the
  // journal. Jobs run on.
  void Shutdown(absl::Duration deadline);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SERVER_H_
