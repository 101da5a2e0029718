#include "base/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/str_cat.h"
#include "base/rpc/address.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// UNAVAILABLE is the one code that says nothing was done (AIP-194).
constexpr char kServiceConfig[] = R"({
  "methodConfig": [{
    "name": [{}],
    "retryPolicy": {
      "maxAttempts": 5,
      "initialBackoff": "0.2s",
      "maxBackoff": "5s",
      "backoffMultiplier": 2,
      "retryableStatusCodes": ["UNAVAILABLE"]
    }
  }]
})";

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const ChannelOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.address));
  if (!options.insecure) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot connect to ", options.address, ": this release speaks ",
        "plaintext on loopback addresses only; pass --insecure for that"));
  }
  if (!IsLoopback(address)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot connect to ", options.address, " without encryption: ",
        "plaintext is allowed on loopback addresses only; use an SSH tunnel ",
        "to 127.0.0.1"));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC's own reconnect back-off grows to 2 minutes; a coordinator that comes
  // back is wanted within seconds.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetServiceConfigJSON(kServiceConfig);
  // A proxy from the environment has no business on loopback.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(
      options.address, grpc::InsecureChannelCredentials(), arguments);
}

void ApplyServerSettings(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              kMaxConnectionAgeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              kMaxConnectionAgeGraceMs);
  // With SO_REUSEPORT, on by default, two coordinators would share a port and
  // split its calls without an error.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
}

}  // namespace cadre
