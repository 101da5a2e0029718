#include "base/rpc/health.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc/grpc_status.h"
#include "base/status_macros.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace cadre {

void EnableHealthService() { grpc::EnableDefaultHealthCheckService(true); }

void SetServing(grpc::Server* server, const std::string& service,
                bool serving) {
  server->GetHealthCheckService()->SetServingStatus(service, serving);
}

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& service, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const auto stub = grpc::health::v1::Health::NewStub(channel);
  const absl::Status status =
      FromGrpcStatus(stub->Check(&context, request, &response));
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("health of '", service, "'"));
  }
  if (response.status() == grpc::health::v1::HealthCheckResponse::SERVING) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("health of '", service, "' is ",
                   grpc::health::v1::HealthCheckResponse::ServingStatus_Name(
                       response.status())));
}

}  // namespace cadre
