#include "base/rpc/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr unsigned kReadAgainSeconds = 60;

// gRPC itself would only log a bad file and refuse every handshake.
absl::Status CheckPem(const std::string& path, absl::string_view what) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (absl::StrContains(text, "-----BEGIN ")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no ", what, " in PEM"));
}

absl::Status Check(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        "TLS: a certificate and its key come together; one of them is not "
        "set");
  }
  if (!files.ca.empty()) {
    CADRE_RETURN_IF_ERROR(CheckPem(files.ca, "certificate"));
  }
  if (!files.certificate.empty()) {
    CADRE_RETURN_IF_ERROR(CheckPem(files.certificate, "certificate"));
    CADRE_RETURN_IF_ERROR(CheckPem(files.key, "private key"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientTls(
    const TlsFiles& files) {
  CADRE_RETURN_IF_ERROR(Check(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (files.certificate.empty()) {
    options.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(files.ca,
                                                         kReadAgainSeconds));
  } else {
    options.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(
            files.key, files.certificate, files.ca, kReadAgainSeconds));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerTls(
    const TlsFiles& files, bool require_client) {
  if (files.certificate.empty() || files.key.empty()) {
    return absl::InvalidArgumentError(
        "TLS: a server needs a certificate and its key");
  }
  if (require_client && files.ca.empty()) {
    return absl::InvalidArgumentError(
        "TLS: certificates of clients are required, but no file says which "
        "authority vouches for them");
  }
  CADRE_RETURN_IF_ERROR(Check(files));
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(
          files.key, files.certificate, files.ca, kReadAgainSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(
        require_client
            ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
            : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace cadre
