#include <grpcpp/grpcpp.h>

#include "cadre/v1/admin_service.grpc.pb.h"
#include "coordinator/services.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(const ServiceDeps& deps)
      : deps_(deps), metrics_{deps.metrics, deps.clock} {}

  grpc::ServerUnaryReactor* ListWorkers(
      grpc::CallbackServerContext* context,
      const v1::ListWorkersRequest* request,
      v1::ListWorkersResponse* response) override {
    auto* reactor = context->DefaultReactor();
    Finisher(metrics_, "ListWorkers", reactor,
             response)(deps_.control->ListWorkers(*request));
    return reactor;
  }

 private:
  const ServiceDeps deps_;
  const CallMetrics metrics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceDeps& deps) {
  return std::make_unique<AdminServiceImpl>(deps);
}

}  // namespace cadre::coordinator
