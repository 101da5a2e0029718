#include "coordinator/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <prometheus/counter.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/address.h"
#include "base/rpc/certificate_expiry.h"
#include "base/rpc/channel.h"
#include "base/rpc/health.h"
#include "base/rpc/tls.h"
#include "base/status_macros.h"
#include "base/timeouts.h"
#include "coordinator/control.h"
#include "coordinator/election.h"
#include "coordinator/gate.h"
#include "coordinator/journal.h"
#include "coordinator/series.h"
#include "coordinator/services.h"
#include "coordinator/watch.h"

namespace cadre::coordinator {
namespace {

constexpr char kDefaultListen[] = "127.0.0.1:8470";

std::string Or(const std::string& value, const std::string& otherwise) {
  return value.empty() ? otherwise : value;
}

// Workers get these paths, so they must not depend on a working directory.
std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

TlsFiles TlsOf(const config::v1::CoordinatorConfig& config) {
  return {.ca = config.tls().client_ca_file(),
          .certificate = config.tls().certificate_file(),
          .key = config.tls().key_file()};
}

int64_t BallastOf(const config::v1::CoordinatorConfig& config) {
  if (config.ballast_bytes() != 0) {
    return std::max<int64_t>(0, config.ballast_bytes());
  }
  return int64_t{64} << 20;
}

template <typename T>
T OrDefault(T value, T otherwise) {
  return value > 0 ? value : otherwise;
}

ControlOptions ControlFor(const config::v1::CoordinatorConfig& config,
                          const std::string& state_dir) {
  const auto below = [&state_dir](const std::string& set, const char* name) {
    return AbsolutePath(Or(set, absl::StrCat(state_dir, "/", name)));
  };
  ControlOptions control{
      .outputs_dir = below(config.outputs_dir(), "outputs"),
      .checkpoints_dir = below(config.checkpoints_dir(), "checkpoints"),
      .allowed_roots = {config.allowed_roots().begin(),
                        config.allowed_roots().end()},
      .state_dir = state_dir,
      .backup_dir = below(config.backups().dir(), "backups"),
      .backup_keep = OrDefault(config.backups().keep(), 8),
      .quota = {.running_jobs = config.max_running_jobs(),
                .running_workers = config.max_running_workers()},
      .preemption = config.preemption()};
  control.backup_every = absl::Minutes(15);
  if (!config.backups().every().empty()) {
    // Checked before.
    (void)absl::ParseDuration(config.backups().every(), &control.backup_every);
  }
  if (!config.shrink_after().empty()) {
    (void)absl::ParseDuration(config.shrink_after(), &control.shrink_after);
  }
  control.max_queued_jobs =
      OrDefault(config.max_queued_jobs(), control.max_queued_jobs);
  if (config.cordon_after_failures() != 0) {
    control.cordon_after_failures = config.cordon_after_failures();
  }
  const config::v1::Retention& keep = config.retention();
  if (keep.job_days() > 0) {
    control.retention.jobs_for = absl::Hours(24 * keep.job_days());
  }
  if (keep.audit_days() > 0) {
    control.retention.audit_for = absl::Hours(24 * keep.audit_days());
  }
  control.retention.purge_artifacts = keep.purge_artifacts();
  control.retention.jobs = OrDefault(keep.jobs(), control.retention.jobs);
  control.retention.events = OrDefault(keep.events(), control.retention.events);
  return control;
}

}  // namespace

struct Server::Impl {
  std::unique_ptr<ScrapeHook> certificate_hook;
  std::unique_ptr<Journal> journal;
  std::unique_ptr<SeriesStore> series;
  std::unique_ptr<Gate> gate;
  std::unique_ptr<Control> control;
  std::unique_ptr<WatchHub> watches;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  std::thread ticker;
  // std and not absl: their timed waits are on the monotonic clock, so that a
  // jump of the wall clock cannot stop the ticking.
  std::mutex tick_mutex;
  std::condition_variable tick_wake;
  bool stop_ticking = false;
  std::atomic<int64_t> ticks{0};
  Address address;
  bool down = false;
  std::function<void(bool)> on_ready;
  bool ready = true;  // the ticker's own

  ~Impl() { Shutdown(absl::Seconds(5)); }
  void TickUntilStopped(absl::Duration interval);
  void Shutdown(absl::Duration deadline);
};

void Server::Impl::TickUntilStopped(absl::Duration interval) {
  std::unique_lock<std::mutex> lock(tick_mutex);
  while (!tick_wake.wait_for(lock, absl::ToChronoMilliseconds(interval),
                             [this] { return stop_ticking; })) {
    lock.unlock();
    control->Tick();
    ++ticks;
    if (ready == journal->disk_full()) {
      ready = !ready;
      SetServing(server.get(), kReadyService, ready);
      if (on_ready) on_ready(ready);
    }
    lock.lock();
  }
}

void Server::Impl::Shutdown(absl::Duration deadline) {
  if (std::exchange(down, true)) return;
  if (server != nullptr) SetServing(server.get(), kReadyService, false);
  if (ticker.joinable()) {
    {
      std::lock_guard<std::mutex> lock(tick_mutex);
      stop_ticking = true;
    }
    tick_wake.notify_all();
    ticker.join();
  }
  // Before the server: an open stream would hold its Shutdown up.
  if (watches != nullptr) watches->Stop();
  if (server != nullptr) {
    server->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  }
  // Answers what is still queued.
  if (control != nullptr) control->Stop();
  if (server != nullptr) server->Wait();
}

absl::Status Server::CheckConfig(const config::v1::CoordinatorConfig& config) {
  if (config.state_dir().empty()) {
    return absl::InvalidArgumentError(
        "state_dir is not set: name a folder on local storage, in the "
        "configuration or with --state-dir");
  }
  CADRE_RETURN_IF_ERROR(ReadTimeouts(config.timeouts()).status());
  if (config.max_queued_jobs() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_queued_jobs is ", config.max_queued_jobs(), ", below 0"));
  }
  if (!config.backups().every().empty()) {
    absl::Duration every;
    if (!absl::ParseDuration(config.backups().every(), &every) ||
        every < absl::ZeroDuration()) {
      return absl::InvalidArgumentError(
          absl::StrCat("backups.every is '", config.backups().every(),
                       "'; write it as 15m, or 0 for none"));
    }
  }
  absl::Duration shrink_after;
  if (!config.shrink_after().empty() &&
      (!absl::ParseDuration(config.shrink_after(), &shrink_after) ||
       shrink_after < absl::ZeroDuration())) {
    return absl::InvalidArgumentError(
        absl::StrCat("shrink_after is '", config.shrink_after(),
                     "'; write it as 30s, or 0 for at once"));
  }
  if (config.has_election()) {
    CADRE_RETURN_IF_ERROR(Election::CheckConfig(config.election()));
  }
  const std::string listen = Or(config.listen(), kDefaultListen);
  CADRE_ASSIGN_OR_RETURN(const Address address, ParseAddress(listen));
  if (config.insecure()) {
    if (IsLoopback(address)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "listen address ", listen,
        " is not loopback: plaintext is allowed on loopback only; use "
        "127.0.0.1, or set tls and access_file"));
  }
  if (config.tls().certificate_file().empty() || config.access_file().empty()) {
    return absl::FailedPreconditionError(
        "neither tls with access_file nor insecure is set: name certificate, "
        "key and access list in the configuration, or allow plaintext on a "
        "loopback address with --insecure (or insecure: true)");
  }
  return ServerTls(TlsOf(config), config.tls().require_client_certificate())
      .status();
}

absl::StatusOr<Server> Server::Start(const ServerOptions& options) {
  const config::v1::CoordinatorConfig& config = options.config;
  CADRE_RETURN_IF_ERROR(CheckConfig(config));
  CADRE_ASSIGN_OR_RETURN(const Timeouts timeouts,
                         ReadTimeouts(config.timeouts()));
  auto impl = std::make_unique<Impl>();
  CADRE_ASSIGN_OR_RETURN(impl->address,
                         ParseAddress(Or(config.listen(), kDefaultListen)));
  CADRE_RETURN_IF_ERROR(CheckCanListen(impl->address, "--listen"));
  const std::string state_dir = AbsolutePath(config.state_dir());
  CADRE_ASSIGN_OR_RETURN(impl->journal,
                         Journal::Open({.state_dir = state_dir,
                                        .clock = options.clock,
                                        .ids = options.ids,
                                        .metrics = options.metrics,
                                        .ballast_bytes = BallastOf(config),
                                        .term = options.term,
                                        .may_write = options.may_write}));
  CADRE_ASSIGN_OR_RETURN(Database reader, impl->journal->OpenReader());
  CADRE_ASSIGN_OR_RETURN(
      impl->series, SeriesStore::Open(absl::StrCat(state_dir, "/series.db")));
  ControlOptions control = ControlFor(config, state_dir);
  control.clock = options.clock;
  control.ids = options.ids;
  control.metrics = options.metrics;
  control.data = options.data;
  control.series = impl->series.get();
  control.timeouts = timeouts;
  CADRE_ASSIGN_OR_RETURN(impl->control,
                         Control::Start(control, impl->journal.get()));
  impl->watches = std::make_unique<WatchHub>(&impl->control->table(),
                                             options.clock, std::move(reader));
  impl->control->table().SetListener(
      [hub = impl->watches.get()] { hub->Wake(); });

  CADRE_ASSIGN_OR_RETURN(
      impl->gate,
      Gate::Open(
          {.clock = options.clock,
           .access_file = config.access_file(),
           .calls_per_second = OrDefault<double>(config.rate_limit(), 20),
           .burst = OrDefault<double>(config.rate_burst(), 200),
           .on_denial = [control = impl->control.get(),
                         metrics = options.metrics](const Caller& caller,
                                                    const std::string& method,
                                                    const std::string& reason) {
             metrics->Counter(metric::kAuthDenials, {{"reason", reason}})
                 .Increment();
             control->AuditDenial(caller, method, reason);
           }}));
  for (const char* reason :
       {"TOKEN_MISSING", "TOKEN_INVALID", "ROLE_REQUIRED"}) {
    options.metrics->Counter(metric::kAuthDenials, {{"reason", reason}});
  }
  // All from 0.
  options.metrics->Gauge(metric::kGrpcInflight);
  options.metrics->Gauge(metric::kWatchStreams);
  options.metrics->Histogram(metric::kDatasetValidation);
  const TlsFiles tls = TlsOf(config);
  impl->certificate_hook = ShowCertificateExpiry(
      options.metrics, {.ca = tls.ca, .certificate = tls.certificate});
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::InsecureServerCredentials();
  if (!config.insecure()) {
    CADRE_ASSIGN_OR_RETURN(
        credentials,
        ServerTls(TlsOf(config), config.tls().require_client_certificate()));
  }
  impl->on_ready = options.on_ready;
  EnableHealthService();
  if (config.reflection())
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const ServiceDeps deps{.control = impl->control.get(),
                         .watches = impl->watches.get(),
                         .gate = impl->gate.get(),
                         .metrics = options.metrics,
                         .clock = options.clock};
  impl->services.push_back(MakeJobService(deps));
  impl->services.push_back(MakeWorkerService(deps));
  impl->services.push_back(MakeAdminService(deps));
  grpc::ServerBuilder builder;
  ApplyServerSettings(&builder);
  int port = 0;
  builder.AddListeningPort(FormatAddress(impl->address), credentials, &port);
  for (const auto& service : impl->services) {
    builder.RegisterService(service.get());
  }
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on ", FormatAddress(impl->address),
        ": another process took the address just now; choose another with "
        "--listen"));
  }
  impl->address.port = port;
  SetServing(impl->server.get(), kLiveService, true);
  impl->ticker =
      std::thread([raw = impl.get(), interval = options.tick_interval] {
        raw->TickUntilStopped(interval);
      });
  CADRE_LOG(INFO) << "coordinator: listening on "
                  << FormatAddress(impl->address) << ", generation "
                  << impl->journal->generation();
  return Server(std::move(impl));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;
Server::~Server() = default;

int64_t Server::ticks() const { return impl_->ticks; }
int Server::port() const { return impl_->address.port; }
std::string Server::address() const { return FormatAddress(impl_->address); }
void Server::Shutdown(absl::Duration deadline) { impl_->Shutdown(deadline); }

}  // namespace cadre::coordinator
