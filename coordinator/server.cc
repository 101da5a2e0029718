#include "coordinator/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

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
#include "base/rpc/channel.h"
#include "base/rpc/health.h"
#include "base/status_macros.h"
#include "base/timeouts.h"
#include "coordinator/control.h"
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

}  // namespace

struct Server::Impl {
  std::unique_ptr<Journal> journal;
  std::unique_ptr<SeriesStore> series;
  Gate gate;
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
  const std::string listen = Or(config.listen(), kDefaultListen);
  CADRE_ASSIGN_OR_RETURN(const Address address, ParseAddress(listen));
  if (!config.insecure()) {
    return absl::FailedPreconditionError(
        "this release has no encryption: allow plaintext on a loopback "
        "address with --insecure (or insecure: true)");
  }
  if (!IsLoopback(address)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "listen address ", listen,
        " is not loopback: plaintext grants every "
        "role to everyone and is allowed on loopback only; use 127.0.0.1"));
  }
  return absl::OkStatus();
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
                                        .metrics = options.metrics}));
  CADRE_ASSIGN_OR_RETURN(Database reader, impl->journal->OpenReader());
  CADRE_ASSIGN_OR_RETURN(
      impl->series, SeriesStore::Open(absl::StrCat(state_dir, "/series.db")));
  ControlOptions control{
      .clock = options.clock,
      .ids = options.ids,
      .metrics = options.metrics,
      .data = options.data,
      .series = impl->series.get(),
      .timeouts = timeouts,
      .outputs_dir = AbsolutePath(
          Or(config.outputs_dir(), absl::StrCat(state_dir, "/outputs"))),
      .checkpoints_dir = AbsolutePath(Or(
          config.checkpoints_dir(), absl::StrCat(state_dir, "/checkpoints"))),
      .allowed_roots = {config.allowed_roots().begin(),
                        config.allowed_roots().end()}};
  if (config.max_queued_jobs() > 0) {
    control.max_queued_jobs = config.max_queued_jobs();
  }
  CADRE_ASSIGN_OR_RETURN(impl->control,
                         Control::Start(control, impl->journal.get()));
  impl->watches = std::make_unique<WatchHub>(&impl->control->table(),
                                             options.clock, std::move(reader));
  impl->control->table().SetListener(
      [hub = impl->watches.get()] { hub->Wake(); });

  EnableHealthService();
  if (config.reflection())
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const ServiceDeps deps{.control = impl->control.get(),
                         .watches = impl->watches.get(),
                         .gate = &impl->gate,
                         .metrics = options.metrics,
                         .clock = options.clock};
  impl->services.push_back(MakeJobService(deps));
  impl->services.push_back(MakeWorkerService(deps));
  impl->services.push_back(MakeAdminService(deps));
  grpc::ServerBuilder builder;
  ApplyServerSettings(&builder);
  int port = 0;
  builder.AddListeningPort(FormatAddress(impl->address),
                           grpc::InsecureServerCredentials(), &port);
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
