#ifndef CADRE_BASE_RPC_TLS_H_
#define CADRE_BASE_RPC_TLS_H_

// Certificates for both ends of a connection, as files in PEM. They are read
// again about once a minute, so that a renewed certificate needs no restart.
// For .cc files (it includes gRPC). Thread-safe: no state.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace cadre {

struct TlsFiles {
  // Who vouches for the other side.
  std::string ca;
  // Own certificate and key: both or none.
  std::string certificate, key;
};

// NOT_FOUND or INVALID_ARGUMENT naming the file that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientTls(
    const TlsFiles& files);

// `ca` is for certificates of clients; empty: clients have tokens only.
// `require_client` refuses connections without a certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerTls(
    const TlsFiles& files, bool require_client);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_TLS_H_
