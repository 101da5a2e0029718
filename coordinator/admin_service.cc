#include <grpcpp/grpcpp.h>

#include "cadre/v1/admin_service.grpc.pb.h"
#include "coordinator/services.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

// The fields that the requests of all verbs share.
template <typename Request>
Control::WorkerVerb Verb(const char* method, v1::Worker::AdminState to,
                         const Request& request) {
  return {.method = method,
          .to = to,
          .name = request.name(),
          .request_id = request.request_id(),
          .reason = request.reason()};
}

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(const ServiceDeps& deps) : deps_(deps) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                       v1::ListWorkersResponse* response) override {
    return Serve(deps_, context, "ListWorkers", response,
                 [&](const Caller&, auto done) {
                   done(deps_.control->ListWorkers(*request));
                 });
  }

  Reactor* Cordon(Context* context, const v1::CordonRequest* request,
                  v1::CordonResponse* response) override {
    return Change(context, response,
                  Verb("Cordon", v1::Worker::ADMIN_STATE_CORDONED, *request));
  }
  Reactor* Uncordon(Context* context, const v1::UncordonRequest* request,
                    v1::UncordonResponse* response) override {
    return Change(
        context, response,
        Verb("Uncordon", v1::Worker::ADMIN_STATE_SCHEDULABLE, *request));
  }
  Reactor* Drain(Context* context, const v1::DrainRequest* request,
                 v1::DrainResponse* response) override {
    Control::WorkerVerb verb =
        Verb("Drain", v1::Worker::ADMIN_STATE_DRAINING, *request);
    verb.mode = request->mode();
    verb.deadline = absl::Seconds(request->deadline().seconds()) +
                    absl::Nanoseconds(request->deadline().nanos());
    return Change(context, response, verb);
  }

  Reactor* GetExpertLoads(Context* context,
                          const v1::GetExpertLoadsRequest* request,
                          v1::GetExpertLoadsResponse* response) override {
    return Serve(deps_, context, "GetExpertLoads", response,
                 [&](const Caller&, auto done) {
                   deps_.control->GetExpertLoads(*request, std::move(done));
                 });
  }

  Reactor* BackupState(Context* context, const v1::BackupStateRequest* request,
                       v1::BackupStateResponse* response) override {
    return Serve(deps_, context, "BackupState", response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->Backup(caller, *request, std::move(done));
                 });
  }
  Reactor* PurgeJobs(Context* context, const v1::PurgeJobsRequest* request,
                     v1::PurgeJobsResponse* response) override {
    return Serve(deps_, context, "PurgeJobs", response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->PurgeJobs(caller, *request, std::move(done));
                 });
  }
  Reactor* ListAuditRecords(Context* context,
                            const v1::ListAuditRecordsRequest* request,
                            v1::ListAuditRecordsResponse* response) override {
    return Serve(deps_, context, "ListAuditRecords", response,
                 [&](const Caller&, auto done) {
                   deps_.control->ListAudit(*request, std::move(done));
                 });
  }

 private:
  template <typename Response>
  Reactor* Change(Context* context, Response* response,
                  const Control::WorkerVerb& verb) {
    return Serve(deps_, context, verb.method, response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->ChangeWorker(
                       caller, verb, [done](absl::StatusOr<v1::Worker> worker) {
                         if (!worker.ok()) return done(worker.status());
                         Response answer;
                         *answer.mutable_worker() = *std::move(worker);
                         done(std::move(answer));
                       });
                 });
  }

  const ServiceDeps deps_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceDeps& deps) {
  return std::make_unique<AdminServiceImpl>(deps);
}

}  // namespace cadre::coordinator
