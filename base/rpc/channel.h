#ifndef CADRE_BASE_RPC_CHANNEL_H_
#define CADRE_BASE_RPC_CHANNEL_H_

// The transport settings of both sides in one place: they must match, or the
// server answers keepalive pings with too_many_pings (grpc#33661).
// Thread-safe: no state.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class Channel;
class ServerBuilder;
}  // namespace grpc

namespace cadre {

// Client: ping after 30 s, give up 10 s later, also without calls. Server:
// accepts pings every 20 s.
inline constexpr int kKeepaliveTimeMs = 30'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
inline constexpr int kMinPingIntervalMs = 20'000;
inline constexpr int kMaxConnectionAgeMs = 30 * 60'000;
inline constexpr int kMaxConnectionAgeGraceMs = 60'000;
// Sync carries checkpoint file lists and expert loads.
inline constexpr int kMaxMessageBytes = 16 << 20;
// What a server's connections may hold in buffers, all together.
inline constexpr size_t kTransportBytes = size_t{128} << 20;

struct ChannelOptions {
  // "127.0.0.1:8470", or several joined by commas of which one serves at a
  // time: the first that takes a connection is used until that breaks. With TLS
  // all of them must have a certificate for the first one's host.
  std::string address;
  // Plaintext; only to loopback addresses. False: TLS, and `ca` is needed.
  bool insecure = false;
  // Who vouches for the server, and this side's certificate, in PEM.
  std::string ca_file, certificate_file, key_file;
  // File with a token, sent as "authorization: Bearer" with every call.
  std::string token_file;
};

// A channel that repeats calls answered UNAVAILABLE, at most 5 attempts with
// 0.2-5 s between them, and nothing else. It connects with the first call.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const ChannelOptions& options);

// INVALID_ARGUMENT if `text` is neither an address nor several.
absl::Status CheckAddresses(const std::string& text);

// Keepalive, connection age, message limits; a port is never shared with
// another process.
void ApplyServerSettings(grpc::ServerBuilder* builder);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_CHANNEL_H_
