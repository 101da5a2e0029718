#include "worker/daemon.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/logging.h"
#include "base/metrics/registry.h"
#include "base/rpc/channel.h"
#include "base/rpc/health_server.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "worker/backend/backend.h"
#include "worker/session.h"

namespace cadre {
namespace {

// Exit code of a process that cannot end its training thread; its supervisor
// starts it again.
constexpr int kExitStuck = 70;

cadre::v1::Device MakeDevice(const WorkerOptions& options,
                             const DeviceFacts& facts) {
  cadre::v1::Device device;
  device.set_backend(facts.backend);
  device.set_uuid(facts.uuid);
  device.set_name(facts.name);
  device.set_memory_bytes(facts.memory_bytes);
  device.set_capability(facts.capability);
  device.set_hostname(options.hostname);
  device.set_link_domain(options.link_domain);
  device.mutable_labels()->insert(options.labels.begin(), options.labels.end());
  return device;
}

}  // namespace

// An address in use may be free at the next start, unlike a wrong one.
template <typename T>
absl::StatusOr<T> AsTransient(absl::StatusOr<T> started) {
  if (absl::IsFailedPrecondition(started.status())) {
    return absl::UnavailableError(started.status().message());
  }
  return started;
}

// Members are destroyed in reverse order: the agent and its session first.
struct WorkerDaemon::Impl {
  std::unique_ptr<DeviceBackend> backend;
  MetricsRegistry registry;
  std::unique_ptr<WorkerMetrics> metrics;
  std::optional<MetricsServer> server;
  std::optional<HealthServer> health;
  SessionOptions session;
  std::unique_ptr<Agent> agent;
};

WorkerDaemon::WorkerDaemon(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
WorkerDaemon::WorkerDaemon(WorkerDaemon&&) noexcept = default;
WorkerDaemon& WorkerDaemon::operator=(WorkerDaemon&&) noexcept = default;
WorkerDaemon::~WorkerDaemon() = default;

absl::StatusOr<WorkerDaemon> WorkerDaemon::Start(const WorkerOptions& options) {
  auto impl = std::make_unique<Impl>();
  CADRE_ASSIGN_OR_RETURN(
      impl->backend,
      SelectBackend(options.device, options.index, options.cpu_threads));
  const DeviceFacts& facts = impl->backend->facts();
  impl->metrics = std::make_unique<WorkerMetrics>(
      &impl->registry,
      WorkerMetrics::Identity{.version = kVersion,
                              .backend = facts.backend,
                              .worker = options.worker_id,
                              .hostname = options.hostname,
                              .gpu_uuid = facts.uuid,
                              .link_domain = options.link_domain});
  CADRE_ASSIGN_OR_RETURN(
      auto channel, OpenChannel({.address = options.coordinator,
                                 .insecure = options.insecure,
                                 .ca_file = options.ca_file,
                                 .certificate_file = options.certificate_file,
                                 .key_file = options.key_file,
                                 .token_file = options.token_file}));
  CADRE_ASSIGN_OR_RETURN(
      impl->server,
      AsTransient(MetricsServer::Start(options.metrics_listen, &impl->registry,
                                       "--metrics-listen")));
  CADRE_ASSIGN_OR_RETURN(impl->health,
                         AsTransient(HealthServer::Start(options.health_listen,
                                                         "--health-listen")));
  if (!options.ports_file.empty()) {
    CADRE_RETURN_IF_ERROR(
        WriteFileAtomic(options.ports_file,
                        absl::StrCat("metrics=", impl->server->port(),
                                     "\nhealth=", impl->health->port(), "\n")));
  }
  impl->session = {.backend = impl->backend.get(),
                   .metrics = impl->metrics.get(),
                   .data_address = options.data_address,
                   .timeouts = options.timeouts};
  AgentOptions agent;
  agent.worker_id = options.worker_id;
  agent.incarnation = IdSource::Random()->Uuid();
  agent.build = kVersion;
  agent.device = MakeDevice(options, facts);
  agent.timeouts = options.timeouts;
  agent.stuck_limit = facts.backend == "cpu" ? options.timeouts.step_timeout
                                             : options.timeouts.abort_grace;
  agent.on_stuck = [] { std::_Exit(kExitStuck); };
  CADRE_LOG(INFO) << "worker " << options.worker_id << " on " << facts.backend
                  << " (" << facts.name << "), coordinator "
                  << options.coordinator;
  impl->agent = std::make_unique<Agent>(
      std::move(agent), std::move(channel),
      [session = &impl->session](const cadre::v1::Assignment& assignment,
                                 SessionLink* link) {
        RunSession(*session, assignment, link);
      },
      impl->metrics.get());
  impl->agent->Start();
  impl->health->SetReady(true);
  return WorkerDaemon(std::move(impl));
}

void WorkerDaemon::Drain() {
  impl_->health->SetReady(false);
  impl_->agent->Drain();
}
int64_t WorkerDaemon::rounds() const { return impl_->agent->rounds(); }
void WorkerDaemon::Abort() { impl_->agent->Abort(); }
AgentExit WorkerDaemon::Wait() { return impl_->agent->Wait(); }

}  // namespace cadre
