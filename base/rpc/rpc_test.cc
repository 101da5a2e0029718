#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include "base/rpc/address.h"
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

}  // namespace
}  // namespace cadre
