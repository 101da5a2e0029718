#include <grpcpp/grpcpp.h>

#include "cadre/v1/worker_service.grpc.pb.h"
#include "coordinator/services.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerServiceImpl(const ServiceDeps& deps) : deps_(deps) {}

  grpc::ServerUnaryReactor* Sync(grpc::CallbackServerContext* context,
                                 const v1::SyncRequest* request,
                                 v1::SyncResponse* response) override {
    return Serve(deps_, context, "Sync", response,
                 [&](const Caller&, auto done) {
                   deps_.control->Sync(*request, std::move(done));
                 });
  }

 private:
  const ServiceDeps deps_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceDeps& deps) {
  return std::make_unique<WorkerServiceImpl>(deps);
}

}  // namespace cadre::coordinator
