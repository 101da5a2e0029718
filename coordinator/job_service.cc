#include <grpcpp/grpcpp.h>

#include "cadre/v1/job_service.grpc.pb.h"
#include "coordinator/api_error.h"
#include "coordinator/page.h"
#include "coordinator/services.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

// Without authentication there is one principal, who may do everything; the
// server then listens on loopback only.
constexpr char kLocalPrincipal[] = "local";

// Deletes itself. Only the hub's thread writes and finishes, so neither can
// happen after OnDone.
class WatchReactor final
    : public grpc::ServerWriteReactor<v1::WatchJobResponse>,
      public WatchSink {
 public:
  WatchReactor(const CallMetrics& metrics, WatchHub* hub,
               const v1::WatchJobRequest& request)
      : metrics_(metrics), hub_(hub) {
    hub_->Add(request, this);
  }

  void Send(const v1::WatchJobResponse& message) override {
    message_ = message;
    StartWrite(&message_);
  }
  void End(const absl::Status& status) override {
    metrics_.Count("WatchJob", status);
    Finish(ToGrpcStatus(status));
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      hub_->Ready(key.load());
    } else {
      hub_->Cancel(key.load());
    }
  }
  void OnCancel() override { hub_->Cancel(key.load()); }
  void OnDone() override { delete this; }

 private:
  const CallMetrics metrics_;
  WatchHub* const hub_;
  v1::WatchJobResponse message_;
};

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(const ServiceDeps& deps)
      : deps_(deps), metrics_{deps.metrics, deps.clock} {}

  grpc::ServerUnaryReactor* CreateJob(
      grpc::CallbackServerContext* context, const v1::CreateJobRequest* request,
      v1::CreateJobResponse* response) override {
    auto* reactor = context->DefaultReactor();
    deps_.control->CreateJob(
        kLocalPrincipal, *request,
        Finisher(metrics_, "CreateJob", reactor, response));
    return reactor;
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    auto* reactor = context->DefaultReactor();
    const auto done = Finisher(metrics_, "GetJob", reactor, response);
    const JobTable& table = deps_.control->table();
    const RecordPtr record = table.Find(JobId(request->name()));
    if (record == nullptr) {
      done(NoSuchJob(request->name()));
      return reactor;
    }
    v1::GetJobResponse answer;
    *answer.mutable_job() =
        table.View(*record, request->view() == v1::JOB_VIEW_FULL);
    done(std::move(answer));
    return reactor;
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    auto* reactor = context->DefaultReactor();
    Finisher(metrics_, "ListJobs", reactor,
             response)(coordinator::ListJobs(deps_.control->table(), *request));
    return reactor;
  }

  grpc::ServerUnaryReactor* CancelJob(
      grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
      v1::CancelJobResponse* response) override {
    auto* reactor = context->DefaultReactor();
    deps_.control->CancelJob(
        kLocalPrincipal, *request,
        Finisher(metrics_, "CancelJob", reactor, response));
    return reactor;
  }

  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext*,
      const v1::WatchJobRequest* request) override {
    return new WatchReactor(metrics_, deps_.watches, *request);
  }

 private:
  const ServiceDeps deps_;
  const CallMetrics metrics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(const ServiceDeps& deps) {
  return std::make_unique<JobServiceImpl>(deps);
}

}  // namespace cadre::coordinator
