#ifndef CADRE_COORDINATOR_UNARY_H_
#define CADRE_COORDINATOR_UNARY_H_

// What every unary handler does around its call: the answer, the status on the
// wire, the metrics. For the service adaptors' .cc files only (it includes
// gRPC). Thread-safe.

#include <grpcpp/grpcpp.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/metrics/registry.h"
#include "base/rpc/grpc_status.h"
#include "coordinator/services.h"

namespace cadre::coordinator {

struct CallMetrics {
  MetricsRegistry* registry = nullptr;
  Clock* clock = nullptr;

  void Count(const std::string& method, const absl::Status& status) const {
    registry
        ->Counter(metric::kGrpcRequests,
                  {{"method", method},
                   {"code", absl::StatusCodeToString(status.code())}})
        .Increment();
  }
};

// A reactor and the function that finishes it, which may be called later and
// from any thread, once.
template <typename Response>
std::function<void(absl::StatusOr<Response>)> Finisher(
    const CallMetrics& metrics, const char* method,
    grpc::ServerUnaryReactor* reactor, Response* response) {
  const absl::Duration start = metrics.clock->Monotonic();
  return [=](absl::StatusOr<Response> result) {
    metrics.Count(method, result.status());
    metrics.registry->Histogram(metric::kGrpcSeconds, {{"method", method}})
        .Observe(absl::ToDoubleSeconds(metrics.clock->Monotonic() - start));
    const grpc::Status status = ToGrpcStatus(result.status());
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(status);
  };
}

// Lets the caller in, then runs `call` with it and the function that finishes
// the RPC.
template <typename Response, typename Call>
grpc::ServerUnaryReactor* Serve(const ServiceDeps& deps,
                                grpc::CallbackServerContext* context,
                                const char* method, Response* response,
                                Call call) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto done =
      Finisher<Response>({deps.metrics, deps.clock}, method, reactor, response);
  absl::StatusOr<Caller> caller = deps.gate->Admit(*context, method);
  if (caller.ok()) {
    call(*caller, std::move(done));
  } else {
    done(caller.status());
  }
  return reactor;
}

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_UNARY_H_
