#include <grpcpp/grpcpp.h>

#include "cadre/v1/job_service.grpc.pb.h"
#include "coordinator/api_error.h"
#include "coordinator/page.h"
#include "coordinator/services.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

// The fields that the requests of all verbs share.
template <typename Request>
Control::JobVerb Verb(const char* method, Trigger trigger, const char* past,
                      const Request& request) {
  return {.method = method,
          .trigger = trigger,
          .past = past,
          .name = request.name(),
          .request_id = request.request_id(),
          .etag = request.etag(),
          .reason = request.reason()};
}

// Wraps a job into the response of its verb.
template <typename Response>
Control::Done<v1::Job> Wrap(
    std::function<void(absl::StatusOr<Response>)> done) {
  return [done](absl::StatusOr<v1::Job> job) {
    if (!job.ok()) return done(job.status());
    Response response;
    *response.mutable_job() = *std::move(job);
    done(std::move(response));
  };
}

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

// Of a caller that may not watch. Deletes itself.
class RefusedWatch final
    : public grpc::ServerWriteReactor<v1::WatchJobResponse> {
 public:
  RefusedWatch(const CallMetrics& metrics, const absl::Status& status) {
    metrics.Count("WatchJob", status);
    Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(const ServiceDeps& deps) : deps_(deps) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* CreateJob(Context* context, const v1::CreateJobRequest* request,
                     v1::CreateJobResponse* response) override {
    return Serve(deps_, context, "CreateJob", response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->CreateJob(caller, *request, std::move(done));
                 });
  }

  Reactor* GetJob(Context* context, const v1::GetJobRequest* request,
                  v1::GetJobResponse* response) override {
    return Serve(deps_, context, "GetJob", response,
                 [&](const Caller&, auto done) {
                   const RecordPtr record = Find(request->name());
                   if (record == nullptr)
                     return done(NoSuchJob(request->name()));
                   v1::GetJobResponse answer;
                   *answer.mutable_job() = deps_.control->table().View(
                       *record, request->view() == v1::JOB_VIEW_FULL);
                   done(std::move(answer));
                 });
  }

  Reactor* ListJobs(Context* context, const v1::ListJobsRequest* request,
                    v1::ListJobsResponse* response) override {
    return Serve(
        deps_, context, "ListJobs", response, [&](const Caller&, auto done) {
          done(coordinator::ListJobs(deps_.control->table(), *request));
        });
  }

  Reactor* CancelJob(Context* context, const v1::CancelJobRequest* request,
                     v1::CancelJobResponse* response) override {
    return Change(context, response,
                  Verb("CancelJob", Trigger::kCancel, "cancelled", *request));
  }
  Reactor* PauseJob(Context* context, const v1::PauseJobRequest* request,
                    v1::PauseJobResponse* response) override {
    return Change(context, response,
                  Verb("PauseJob", Trigger::kPause, "paused", *request));
  }
  Reactor* ResumeJob(Context* context, const v1::ResumeJobRequest* request,
                     v1::ResumeJobResponse* response) override {
    Control::JobVerb verb =
        Verb("ResumeJob", Trigger::kResume, "resumed", *request);
    if (request->has_priority()) verb.priority = request->priority();
    return Change(context, response, verb);
  }
  Reactor* DeleteJob(Context* context, const v1::DeleteJobRequest* request,
                     v1::DeleteJobResponse* response) override {
    return Serve(deps_, context, "DeleteJob", response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->DeleteJob(caller, *request, std::move(done));
                 });
  }

  Reactor* GetPlan(Context* context, const v1::GetPlanRequest* request,
                   v1::GetPlanResponse* response) override {
    return Serve(deps_, context, "GetPlan", response,
                 [&](const Caller&, auto done) {
                   const RecordPtr record = Find(request->name());
                   if (record == nullptr)
                     return done(NoSuchJob(request->name()));
                   v1::GetPlanResponse answer;
                   *answer.mutable_plan() = record->job().plan();
                   done(std::move(answer));
                 });
  }
  Reactor* ListCheckpoints(Context* context,
                           const v1::ListCheckpointsRequest* request,
                           v1::ListCheckpointsResponse* response) override {
    return Serve(
        deps_, context, "ListCheckpoints", response,
        [&](const Caller&, auto done) {
          done(coordinator::ListCheckpoints(deps_.control->table(), *request));
        });
  }
  Reactor* ListArtifacts(Context* context,
                         const v1::ListArtifactsRequest* request,
                         v1::ListArtifactsResponse* response) override {
    return Serve(deps_, context, "ListArtifacts", response,
                 [&](const Caller&, auto done) {
                   const RecordPtr record = Find(request->parent());
                   if (record == nullptr) {
                     return done(NoSuchJob(request->parent()));
                   }
                   v1::ListArtifactsResponse answer;
                   *answer.mutable_artifacts() = record->job().artifacts();
                   done(std::move(answer));
                 });
  }
  Reactor* GetMetrics(Context* context, const v1::GetMetricsRequest* request,
                      v1::GetMetricsResponse* response) override {
    return Serve(deps_, context, "GetMetrics", response,
                 [&](const Caller&, auto done) {
                   deps_.control->GetMetrics(*request, std::move(done));
                 });
  }

  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      Context* context, const v1::WatchJobRequest* request) override {
    const CallMetrics metrics{deps_.metrics, deps_.clock};
    const auto caller = deps_.gate->Admit(*context, "WatchJob");
    if (!caller.ok()) return new RefusedWatch(metrics, caller.status());
    return new WatchReactor(metrics, deps_.watches, *request);
  }

 private:
  RecordPtr Find(const std::string& name) const {
    return deps_.control->table().Find(JobId(name));
  }
  template <typename Response>
  Reactor* Change(Context* context, Response* response,
                  const Control::JobVerb& verb) {
    return Serve(deps_, context, verb.method, response,
                 [&](const Caller& caller, auto done) {
                   deps_.control->ChangeJob(caller, verb,
                                            Wrap<Response>(std::move(done)));
                 });
  }

  const ServiceDeps deps_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(const ServiceDeps& deps) {
  return std::make_unique<JobServiceImpl>(deps);
}

}  // namespace cadre::coordinator
