#ifndef CADRE_COORDINATOR_SERVICES_H_
#define CADRE_COORDINATOR_SERVICES_H_

// The gRPC faces of Control: they convert and forward, nothing else. Each is
// thread-safe; what they are given must outlive them.

#include <memory>

#include "base/clock.h"
#include "base/metrics/registry.h"
#include "coordinator/control.h"
#include "coordinator/gate.h"
#include "coordinator/watch.h"

namespace grpc {
class Service;
}

namespace cadre::coordinator {

struct ServiceDeps {
  Control* control = nullptr;
  WatchHub* watches = nullptr;
  Gate* gate = nullptr;
  MetricsRegistry* metrics = nullptr;
  Clock* clock = nullptr;
};

std::unique_ptr<grpc::Service> MakeJobService(const ServiceDeps& deps);
std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceDeps& deps);
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceDeps& deps);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SERVICES_H_
