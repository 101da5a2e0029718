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
    return Serve(
        deps_, context, "Sync", response, [&](const Caller& caller, auto done) {
          const absl::Status own = CheckWorkerId(caller, request->worker_id());
          if (!own.ok()) {
            deps_.gate->Deny(caller, "Sync", own);
            return done(own);
          }
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
