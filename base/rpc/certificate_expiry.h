#ifndef CADRE_BASE_RPC_CERTIFICATE_EXPIRY_H_
#define CADRE_BASE_RPC_CERTIFICATE_EXPIRY_H_

// When the TLS files of a daemon stop being good. Plain functions.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metrics/registry.h"

namespace cadre {

// The earliest end of validity of the certificates in a PEM file. NOT_FOUND or
// INVALID_ARGUMENT naming the file.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

struct CertificateFiles {
  std::string ca, certificate;  // "": none
};
// Keeps cadre_certificate_expiry_timestamp_seconds for as long as the hook
// lives; the files are read again about once a minute. A file that cannot be
// read shows NaN. Null where there is no file.
std::unique_ptr<ScrapeHook> ShowCertificateExpiry(
    MetricsRegistry* registry, const CertificateFiles& files);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_CERTIFICATE_EXPIRY_H_
