#include "base/rpc/health_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/address.h"
#include "base/rpc/health.h"
#include "base/status_macros.h"

namespace cadre {

struct HealthServer::Impl {
  // Answers UNIMPLEMENTED. Health alone does not make gRPC poll; a server needs
  // a callback service to be served at all.
  grpc::CallbackGenericService service;
  std::unique_ptr<grpc::Server> server;  // null when off
  int port = 0;

  ~Impl() {
    // Probes watch for ever; they do not hold the process up.
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }
};

absl::StatusOr<HealthServer> HealthServer::Start(absl::string_view address,
                                                 absl::string_view flag) {
  HealthServer health;
  health.impl_ = std::make_unique<Impl>();
  if (address == "off") return health;
  absl::StatusOr<Address> parsed = ParseAddress(address);
  if (!parsed.ok()) return Annotate(parsed.status(), flag);
  CADRE_RETURN_IF_ERROR(CheckCanListen(*parsed, flag));
  EnableHealthService();
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&health.impl_->service);
  builder.AddListeningPort(FormatAddress(*parsed),
                           grpc::InsecureServerCredentials(),
                           &health.impl_->port);
  health.impl_->server = builder.BuildAndStart();
  if (health.impl_->server == nullptr || health.impl_->port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", FormatAddress(*parsed),
                     ": choose another address with ", flag));
  }
  SetServing(health.impl_->server.get(), kLiveService, true);
  health.SetReady(false);
  return health;
}

HealthServer::HealthServer() = default;
HealthServer::HealthServer(HealthServer&&) noexcept = default;
HealthServer& HealthServer::operator=(HealthServer&&) noexcept = default;
HealthServer::~HealthServer() = default;

void HealthServer::SetReady(bool ready) {
  if (impl_->server == nullptr) return;
  SetServing(impl_->server.get(), kReadyService, ready);
}

int HealthServer::port() const { return impl_->port; }

}  // namespace cadre
