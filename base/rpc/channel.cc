#include "base/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/rpc/address.h"
#include "base/rpc/tls.h"
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

// Adds the token to every call. An interceptor and not call credentials: those
// do not work without TLS, which a trial on one machine does without.
class TokenSender final : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(const std::string& value) : value_(value) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_INITIAL_METADATA)) {
      batch->GetSendInitialMetadata()->insert({"authorization", value_});
    }
    batch->Proceed();
  }

 private:
  const std::string& value_;
};

class TokenSenderFactory final
    : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenSenderFactory(const std::string& token)
      : value_(absl::StrCat("Bearer ", token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenSender(value_);
  }

 private:
  const std::string value_;
};

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::string token(absl::StripAsciiWhitespace(text));
  // Anything else would be refused by the transport, with the token in the
  // message.
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (token.empty() || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no token: one word of printable ASCII"));
  }
  return token;
}

absl::StatusOr<std::vector<Address>> ParseAddresses(const std::string& text) {
  std::vector<Address> addresses;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    CADRE_ASSIGN_OR_RETURN(Address address,
                           ParseAddress(absl::StripAsciiWhitespace(part)));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

// gRPC tries the addresses of one target in order, but takes a list of numeric
// ones only, all of a family.
absl::StatusOr<std::string> TargetOf(const std::vector<Address>& addresses) {
  if (addresses.size() == 1) return FormatAddress(addresses[0]);
  for (const int family : {AF_INET, AF_INET6}) {
    std::vector<std::string> numeric;
    for (const Address& address : addresses) {
      addrinfo hints = {};
      hints.ai_family = family;
      hints.ai_socktype = SOCK_STREAM;
      addrinfo* found = nullptr;
      if (getaddrinfo(address.host.c_str(), nullptr, &hints, &found) != 0) {
        break;
      }
      char host[NI_MAXHOST];
      if (getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof(host),
                      nullptr, 0, NI_NUMERICHOST) == 0) {
        numeric.push_back(FormatAddress({.host = host, .port = address.port}));
      }
      freeaddrinfo(found);
    }
    if (numeric.size() == addresses.size()) {
      return absl::StrCat(family == AF_INET ? "ipv4:" : "ipv6:",
                          absl::StrJoin(numeric, ","));
    }
  }
  return absl::UnavailableError(absl::StrCat(
      "not all of the ", addresses.size(),
      " addresses of the coordinator can be resolved in one family (IPv4 or "
      "IPv6), the first of them is ",
      FormatAddress(addresses[0])));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const ChannelOptions& options, const std::vector<Address>& addresses) {
  if (!options.insecure) {
    if (options.ca_file.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot connect to ", options.address,
          " without knowing who vouches "
          "for it: name the authority's certificate with --ca, or pass "
          "--insecure for plaintext to a loopback address"));
    }
    return ClientTls({.ca = options.ca_file,
                      .certificate = options.certificate_file,
                      .key = options.key_file});
  }
  if (!std::all_of(addresses.begin(), addresses.end(), IsLoopback)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot connect to ", options.address, " without encryption: ",
        "plaintext is allowed on loopback addresses only; name the "
        "authority's certificate with --ca, or use an SSH tunnel to "
        "127.0.0.1"));
  }
  return grpc::InsecureChannelCredentials();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(
    const ChannelOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Address> addresses,
                         ParseAddresses(options.address));
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> tls,
                         Credentials(options, addresses));
  CADRE_ASSIGN_OR_RETURN(const std::string target, TargetOf(addresses));
  std::string token;
  if (!options.token_file.empty()) {
    CADRE_ASSIGN_OR_RETURN(token, ReadToken(options.token_file));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC's own reconnect back-off grows to 2 minutes; a coordinator that comes
  // back is wanted within seconds. What is called the least back-off is really
  // the time that one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetServiceConfigJSON(kServiceConfig);
  if (addresses.size() > 1) {
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, addresses[0].host);
    if (!options.insecure) {
      arguments.SetSslTargetNameOverride(addresses[0].host);
    }
  }
  // A proxy from the environment has no business on loopback.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::vector<
      std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
      interceptors;
  if (!token.empty()) {
    interceptors.push_back(std::make_unique<TokenSenderFactory>(token));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, tls, arguments, std::move(interceptors));
}

absl::Status CheckAddresses(const std::string& text) {
  return ParseAddresses(text).status();
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
  // gRPC refuses a message that is too large only once it is in memory. With a
  // quota the transport gives such a stream up on the way.
  builder->SetResourceQuota(
      grpc::ResourceQuota("server").Resize(kTransportBytes));
}

}  // namespace cadre
