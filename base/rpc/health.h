#ifndef CADRE_BASE_RPC_HEALTH_H_
#define CADRE_BASE_RPC_HEALTH_H_

// The standard health service. Two names: "" is ready (may get work), "live"
// says the process turns; liveness never depends on disk, quota or load, or a
// full disk becomes a restart loop.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
class Server;
}  // namespace grpc

namespace cadre {

inline constexpr char kReadyService[] = "";
inline constexpr char kLiveService[] = "live";

// Adds the health service to every server built afterwards.
void EnableHealthService();

// Thread-safe. `server` must have been built after EnableHealthService.
void SetServing(grpc::Server* server, const std::string& service, bool serving);

// OK when the service answers SERVING within the time; else UNAVAILABLE with
// what it said.
absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& service, absl::Duration timeout);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_HEALTH_H_
