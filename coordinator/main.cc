// cadre-coordinator: the control plane's daemon.

#include <prometheus/gauge.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/metrics/registry.h"
#include "base/proto_file.h"
#include "base/rpc/error.h"
#include "base/rpc/health_server.h"
#include "base/systemd/notifier.h"
#include "base/version.h"
#include "coordinator/backup.h"
#include "coordinator/election.h"
#include "coordinator/server.h"
#include "coordinator/text_data_check.h"

namespace {

constexpr int kExitConfig = 78;     // EX_CONFIG: a restart would not help
constexpr int kExitLostLease = 75;  // EX_TEMPFAIL: another is active now
constexpr char kDefaultMetrics[] = "127.0.0.1:8472";
constexpr char kDefaultHealth[] = "127.0.0.1:8471";
// Recovery of a large journal, given in slices.
constexpr absl::Duration kRecoveryTime = absl::Minutes(5);

int Fail(const absl::Status& status, int code) {
  std::cerr << "cadre-coordinator: " << status.message() << "\n";
  return code;
}

// Of a subcommand: 0, or 1 with the reason.
int Show(const char* what,
         const absl::StatusOr<cadre::coordinator::BackupInfo>& info) {
  if (!info.ok()) return Fail(info.status(), 1);
  std::cout << what << ": " << info->path << ", " << info->bytes << " bytes, "
            << info->jobs << " jobs, generation " << info->generation << "\n";
  return 0;
}

// True if one of the signals came within that time.
bool SignalWithin(const sigset_t& signals, absl::Duration time) {
  const timespec limit = absl::ToTimespec(time);
  return sigtimedwait(&signals, nullptr, &limit) > 0;
}

// Waits to become the active coordinator. CANCELLED when a signal came first.
absl::StatusOr<int64_t> BecomeActive(cadre::coordinator::Election* election,
                                     const sigset_t& signals,
                                     cadre::Notifier* notifier) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> turns{0};
  // One that waits has started well, and shows that it turns.
  notifier->Ready("waiting to become active");
  const cadre::Watchdog watchdog(notifier, [&] { return turns.load(); });
  auto campaign =
      std::async(std::launch::async, [&] { return election->Campaign(&stop); });
  while (campaign.wait_for(std::chrono::seconds(0)) !=
         std::future_status::ready) {
    ++turns;
    if (SignalWithin(signals, absl::Milliseconds(100))) stop = true;
  }
  return campaign.get();
}

// The former active one may be a moment away from its end, with the state still
// in its hands.
absl::StatusOr<cadre::coordinator::Server> StartServer(
    const cadre::coordinator::ServerOptions& options,
    const cadre::coordinator::Election* election, const sigset_t& signals) {
  while (true) {
    auto server = cadre::coordinator::Server::Start(options);
    if (election == nullptr || !election->Holds() ||
        cadre::ErrorReason(server.status()) != "STATE_IN_USE" ||
        SignalWithin(signals, absl::Milliseconds(100))) {
      return server;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Control plane of Cadre: takes jobs, places them on workers.");
  app.set_version_flag("--version", cadre::kVersion);
  std::string config_file, listen, metrics_listen, health_listen, state_dir,
      ports_file;
  std::string access_file, backup_file, restore_from, check_file;
  bool insecure = false, check_config = false;
  app.add_option("--config", config_file, "text-format CoordinatorConfig");
  app.add_option("--listen", listen, "API address (127.0.0.1:8470)");
  app.add_option("--metrics-listen", metrics_listen,
                 "Prometheus address (127.0.0.1:8472), or off");
  app.add_option("--health-listen", health_listen,
                 "health for probes (127.0.0.1:8471), or off");
  app.add_option("--state-dir", state_dir, "folder of state.db");
  app.add_option("--ports-file", ports_file,
                 "write the addresses there once serving");
  app.add_option("--access-file", access_file,
                 "text-format AccessList: who may call");
  app.add_flag("--insecure", insecure, "plaintext, on loopback only");
  app.add_flag("--check-config", check_config, "exit 0 or 78");
  CLI::App* backup = app.add_subcommand(
      "backup", "Copy the state, also while a coordinator runs on it");
  backup->add_option("path", backup_file, "File to write")->required();
  backup->fallthrough();
  CLI::App* restore = app.add_subcommand(
      "restore", "Put a copy in place of the state, which is kept beside it");
  restore->add_option("path", restore_from, "File to read")->required();
  restore->fallthrough();
  CLI::App* check = app.add_subcommand("check", "Check a copy of the state");
  check->add_option("path", check_file, "File to read")->required();
  CLI11_PARSE(app, argc, argv);

  cadre::config::v1::CoordinatorConfig config;
  if (!config_file.empty()) {
    const absl::Status read = cadre::ReadTextProto(config_file, &config);
    if (!read.ok()) return Fail(read, kExitConfig);
  }
  if (!listen.empty()) config.set_listen(listen);
  if (!metrics_listen.empty()) config.set_metrics_listen(metrics_listen);
  if (!health_listen.empty()) config.set_health_listen(health_listen);
  if (!state_dir.empty()) config.set_state_dir(state_dir);
  if (insecure) config.set_insecure(true);
  if (!access_file.empty()) config.set_access_file(access_file);
  if (!check_file.empty()) {
    return Show("good", cadre::coordinator::CheckBackup(check_file));
  }
  if (!backup_file.empty() || !restore_from.empty()) {
    if (config.state_dir().empty()) {
      return Fail(absl::InvalidArgumentError("state_dir is not set"),
                  kExitConfig);
    }
    return restore_from.empty()
               ? Show("written", cadre::coordinator::BackUp(config.state_dir(),
                                                            backup_file))
               : Show("restored", cadre::coordinator::Restore(
                                      restore_from, config.state_dir()));
  }
  if (config.metrics_listen().empty()) {
    config.set_metrics_listen(kDefaultMetrics);
  }
  if (config.health_listen().empty()) config.set_health_listen(kDefaultHealth);
  const absl::Status valid = cadre::coordinator::Server::CheckConfig(config);
  if (!valid.ok()) return Fail(valid, kExitConfig);
  if (check_config) return 0;

  // Before any thread, so that all inherit the mask and sigwait gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  cadre::Notifier notifier = cadre::Notifier::FromEnvironment();

  cadre::MetricsRegistry metrics;
  metrics.Gauge(cadre::metric::kBuildInfo, {{"version", cadre::kVersion}})
      .Set(1);
  auto exposer = cadre::MetricsServer::Start(config.metrics_listen(), &metrics,
                                             "--metrics-listen");
  if (!exposer.ok()) return Fail(exposer.status(), 1);
  auto health =
      cadre::HealthServer::Start(config.health_listen(), "--health-listen");
  if (!health.ok()) return Fail(health.status(), 1);
  notifier.ExtendStart(kRecoveryTime);
  const auto data = cadre::coordinator::MakeTextDataChecker();
  cadre::coordinator::ServerOptions options{
      .config = config,
      .metrics = &metrics,
      .data = data.get(),
      .on_ready = [&health](bool ready) { health->SetReady(ready); }};
  std::unique_ptr<cadre::coordinator::Election> election;
  if (config.has_election()) {
    auto made = cadre::coordinator::Election::Make(
        {.config = config.election(),
         .name = config.listen(),
         .on_lost = [](const absl::Status& why) {
           // At once: what runs on must not act on what it believes.
           CADRE_LOG(ERROR) << "election: no longer active: " << why.ToString();
           std::_Exit(kExitLostLease);
         }});
    if (!made.ok()) return Fail(made.status(), kExitConfig);
    election = *std::move(made);
    const auto term = BecomeActive(election.get(), signals, &notifier);
    if (absl::IsCancelled(term.status())) return 0;
    if (!term.ok()) return Fail(term.status(), 1);
    options.term = *term;
    options.may_write = [raw = election.get()] { return raw->Holds(); };
  }
  auto server = StartServer(options, election.get(), signals);
  if (!server.ok()) {
    // A restart would not help against a state of a newer release.
    return Fail(server.status(),
                cadre::ErrorReason(server.status()) == "SCHEMA_NEWER"
                    ? kExitConfig
                    : 1);
  }
  if (!ports_file.empty()) {
    const absl::Status written = cadre::WriteFileAtomic(
        ports_file,
        absl::StrCat("api=", server->port(), "\nmetrics=", exposer->port(),
                     "\nhealth=", health->port(), "\n"));
    if (!written.ok()) return Fail(written, 1);
  }
  health->SetReady(true);
  notifier.Ready(absl::StrCat("listening on ", server->address()));
  const cadre::Watchdog watchdog(&notifier, [&] { return server->ticks(); });
  int signal = 0;
  sigwait(&signals, &signal);
  CADRE_LOG(INFO) << "coordinator: signal " << signal << ", shutting down";
  health->SetReady(false);
  notifier.Stopping("shutting down; jobs run on");
  server->Shutdown(absl::Seconds(10));
  return 0;
}
