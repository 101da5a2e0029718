#ifndef CADRE_CLIENT_JOB_CLIENT_IMPL_H_
#define CADRE_CLIENT_JOB_CLIENT_IMPL_H_

// What the files that implement JobClient share: its stubs, and how a call is
// made and repeated. Thread-safe as JobClient is.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/rpc/grpc_status.h"
#include "base/status_macros.h"
#include "cadre/v1/admin_service.grpc.pb.h"
#include "cadre/v1/job_service.grpc.pb.h"
#include "client/job_client.h"

namespace cadre::client {

inline constexpr absl::Duration kFirstRetryPause = absl::Milliseconds(200);
inline constexpr absl::Duration kLongestRetryPause = absl::Seconds(5);

// A verb's request, under an id that its retries share.
template <typename Request>
Request Verb(const std::string& name, const std::string& reason) {
  Request request;
  request.set_name(name);
  request.set_request_id(NewUuid());
  request.set_reason(reason);
  return request;
}

struct JobClient::Impl {
  Impl(JobClientOptions o, const std::shared_ptr<grpc::Channel>& channel)
      : options(std::move(o)),
        jobs(v1::JobService::NewStub(channel)),
        admin(v1::AdminService::NewStub(channel)) {}

  // One unary call under the client's deadline, repeated while the server is
  // unavailable and time is left.
  template <typename Call>
  absl::Status Unary(Call call) {
    const absl::Time deadline = absl::Now() + options.timeout;
    absl::Duration pause = kFirstRetryPause;
    for (;;) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      const absl::Status status = FromGrpcStatus(call(&context));
      if (status.code() == absl::StatusCode::kUnavailable &&
          absl::Now() + pause < deadline) {
        absl::SleepFor(pause);
        pause = std::min(2 * pause, kLongestRetryPause);
        continue;
      }
      if (status.code() == absl::StatusCode::kUnavailable ||
          status.code() == absl::StatusCode::kDeadlineExceeded) {
        return Annotate(
            status,
            absl::StrCat("no answer from the coordinator at ", options.address,
                         " (is it running? --address or CADRE_ADDRESS names "
                         "another)"));
      }
      return status;
    }
  }

  // The same for a method of a stub: its response or its error.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      const std::unique_ptr<Stub>& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) {
    Response response;
    CADRE_RETURN_IF_ERROR(Unary([&](grpc::ClientContext* context) {
      return ((*stub).*method)(context, request, &response);
    }));
    return response;
  }

  JobClientOptions options;
  std::unique_ptr<v1::JobService::Stub> jobs;
  std::unique_ptr<v1::AdminService::Stub> admin;

  std::mutex mutex;
  bool interrupted = false;                // guarded by mutex
  std::set<grpc::ClientContext*> watches;  // guarded by mutex
};

}  // namespace cadre::client

#endif  // CADRE_CLIENT_JOB_CLIENT_IMPL_H_
