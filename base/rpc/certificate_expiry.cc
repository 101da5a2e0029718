#include "base/rpc/certificate_expiry.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <prometheus/gauge.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr absl::Duration kReadAgain = absl::Minutes(1);

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeX509 {
  void operator()(X509* certificate) const { X509_free(certificate); }
};

struct Shown {
  std::string path;
  prometheus::Gauge* gauge = nullptr;
};

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::unique_ptr<BIO, FreeBio> bio(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  absl::Time earliest = absl::InfiniteFuture();
  while (const auto certificate = std::unique_ptr<X509, FreeX509>(
             PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))) {
    tm end{};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " holds a certificate without an end"));
    }
    earliest = std::min(earliest, absl::FromTM(end, absl::UTCTimeZone()));
  }
  ERR_clear_error();  // the end of the file is one
  if (earliest == absl::InfiniteFuture()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no certificate in PEM"));
  }
  return earliest;
}

std::unique_ptr<ScrapeHook> ShowCertificateExpiry(
    MetricsRegistry* registry, const CertificateFiles& files) {
  std::vector<Shown> shown;
  for (const auto& [name, path] :
       {std::pair{"certificate", files.certificate}, {"ca", files.ca}}) {
    if (path.empty()) continue;
    shown.push_back(
        {path, &registry->Gauge(metric::kCertificateExpiry, {{"name", name}})});
  }
  if (shown.empty()) return nullptr;
  return registry->BeforeScrape([shown,
                                 read_at = absl::InfinitePast()]() mutable {
    const absl::Time now = absl::Now();
    if (now - read_at < kReadAgain && now >= read_at) return;
    read_at = now;
    for (const Shown& file : shown) {
      const absl::StatusOr<absl::Time> end = CertificateExpiry(file.path);
      file.gauge->Set(end.ok() ? absl::ToDoubleSeconds(*end - absl::UnixEpoch())
                               : std::numeric_limits<double>::quiet_NaN());
    }
  });
}

}  // namespace cadre
