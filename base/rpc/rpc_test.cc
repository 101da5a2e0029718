#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/file.h"
#include "base/rpc/address.h"
#include "base/rpc/certificate_expiry.h"
#include "base/rpc/channel.h"
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/health.h"
#include "base/rpc/health_server.h"
#include "base/status_matchers.h"
#include "google/rpc/error_details.pb.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

TEST(GrpcStatus, CarriesDetailsBothWays) {
  absl::Status status =
      WithRetry(Error(absl::StatusCode::kAborted, "ETAG_MISMATCH", "changed",
                      {{"etag", "7"}}),
                absl::Milliseconds(1500));
  google::rpc::BadRequest bad;
  bad.add_field_violations()->set_field("a.b");
  AddDetail(bad, &status);
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(back.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(back.message(), "changed");
  EXPECT_EQ(ErrorReason(back), "ETAG_MISMATCH");
  EXPECT_EQ(ErrorMetadata(back, "etag"), "7");
  EXPECT_EQ(ErrorMetadata(back, "other"), "");
  EXPECT_EQ(
      GetDetail<google::rpc::BadRequest>(back)->field_violations(0).field(),
      "a.b");
  const auto retry = GetDetail<google::rpc::RetryInfo>(back);
  EXPECT_EQ(retry->retry_delay().seconds(), 1);
  EXPECT_EQ(retry->retry_delay().nanos(), 500'000'000);
  EXPECT_FALSE(GetDetail<google::rpc::QuotaFailure>(back).has_value());
}

TEST(GrpcStatus, GivesEveryErrorAReason) {
  EXPECT_EQ(ErrorReason(
                FromGrpcStatus(ToGrpcStatus(absl::InvalidArgumentError("x")))),
            "INVALID_ARGUMENT");
  EXPECT_OK(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())));
  EXPECT_THAT(FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "u")),
              StatusIs(absl::StatusCode::kUnavailable, "u"));
}

TEST(Address, ParsesHostsAndPorts) {
  EXPECT_EQ(ParseAddress("127.0.0.1:8470")->port, 8470);
  EXPECT_EQ(ParseAddress("[::1]:0")->host, "::1");
  EXPECT_EQ(FormatAddress(*ParseAddress("[::1]:5")), "[::1]:5");
  for (const char* bad :
       {"", "host", ":80", "h:", "h:70000", "h:x", "::1:80"}) {
    EXPECT_THAT(ParseAddress(bad).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad)));
  }
  EXPECT_TRUE(IsLoopback({"127.0.0.9", 1}));
  EXPECT_TRUE(IsLoopback({"localhost", 1}));
  EXPECT_FALSE(IsLoopback({"0.0.0.0", 1}));
  EXPECT_FALSE(IsLoopback({"10.0.0.1", 1}));
}

TEST(Channel, IsRefusedOffLoopbackWithoutEncryption) {
  EXPECT_THAT(
      OpenChannel({.address = "10.1.1.1:80", .insecure = true}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("loopback")));
  EXPECT_THAT(
      OpenChannel({.address = "127.0.0.1:80", .insecure = false}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--insecure")));
}

TEST(Server, ServesHealthAndKeepsItsPortToItself) {
  EnableHealthService();
  // Health alone does not make gRPC poll; every real server has a service.
  grpc::CallbackGenericService service;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service);
  ApplyServerSettings(&builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(
      CheckCanListen({"127.0.0.1", port}, "--listen"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr(std::to_string(port)),
                                HasSubstr("in use"), HasSubstr("--listen"))));
  EXPECT_OK(CheckCanListen({"127.0.0.1", 0}, "--listen"));

  ASSERT_OK_AND_ASSIGN(
      auto channel, OpenChannel({.address = FormatAddress({"127.0.0.1", port}),
                                 .insecure = true}));
  SetServing(server.get(), kLiveService, true);
  EXPECT_OK(CheckHealth(channel, kLiveService, absl::Seconds(10)));
  EXPECT_OK(CheckHealth(channel, kReadyService, absl::Seconds(10)));
  SetServing(server.get(), kReadyService, false);
  EXPECT_THAT(
      CheckHealth(channel, kReadyService, absl::Seconds(10)),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("NOT_SERVING")));
  server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
}

TEST(HealthServer, IsLiveFromTheStartAndReadyWhenTold) {
  ASSERT_OK_AND_ASSIGN(HealthServer health,
                       HealthServer::Start("127.0.0.1:0", "--health-listen"));
  ASSERT_OK_AND_ASSIGN(
      auto channel,
      OpenChannel({.address = FormatAddress({"127.0.0.1", health.port()}),
                   .insecure = true}));
  EXPECT_OK(CheckHealth(channel, kLiveService, absl::Seconds(10)));
  EXPECT_THAT(
      CheckHealth(channel, kReadyService, absl::Seconds(10)),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("NOT_SERVING")));
  health.SetReady(true);
  EXPECT_OK(CheckHealth(channel, kReadyService, absl::Seconds(10)));
}

TEST(HealthServer, CanBeOffAndNamesAWrongAddress) {
  ASSERT_OK_AND_ASSIGN(HealthServer health,
                       HealthServer::Start("off", "--health-listen"));
  EXPECT_EQ(health.port(), 0);
  health.SetReady(true);
  EXPECT_THAT(HealthServer::Start("nowhere", "--health-listen").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--health-listen")));
}

// A self-signed certificate in PEM that is good until `end`.
std::string MakeCertificate(absl::Time end) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(end));
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  char* data = nullptr;
  const int64_t size = BIO_get_mem_data(bio, &data);
  std::string pem(data, size);
  BIO_free(bio);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pem;
}

TEST(CertificateExpiry, IsThatOfTheFirstToExpire) {
  const absl::Time soon = absl::FromUnixSeconds(2'000'000'000);
  const absl::Time later = soon + absl::Hours(24 * 365 * 40);
  const std::string path = ::testing::TempDir() + "/chain.pem";
  ASSERT_OK(WriteFileAtomic(
      path, MakeCertificate(later) + "between\n" + MakeCertificate(soon)));
  ASSERT_OK_AND_ASSIGN(const absl::Time expiry, CertificateExpiry(path));
  EXPECT_EQ(expiry, soon);

  MetricsRegistry metrics;
  const auto hook = ShowCertificateExpiry(
      &metrics, {.ca = path + ".none", .certificate = path});
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("{name=\"certificate\"} 2000000000"));
  EXPECT_THAT(text, HasSubstr("{name=\"ca\"} Nan"));
  EXPECT_EQ(ShowCertificateExpiry(&metrics, {}), nullptr);
}

TEST(CertificateExpiry, NamesAFileWithoutACertificate) {
  const std::string path = ::testing::TempDir() + "/key.pem";
  ASSERT_OK(WriteFileAtomic(path, "-----BEGIN PRIVATE KEY-----\n"));
  EXPECT_THAT(CertificateExpiry(path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
}

}  // namespace
}  // namespace cadre
