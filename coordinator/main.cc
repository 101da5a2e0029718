// cadre-coordinator: the control plane's daemon.

#include <prometheus/gauge.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/metrics/registry.h"
#include "base/proto_file.h"
#include "base/rpc/health_server.h"
#include "base/systemd/notifier.h"
#include "base/version.h"
#include "coordinator/server.h"
#include "coordinator/text_data_check.h"

namespace {

constexpr int kExitConfig = 78;  // EX_CONFIG: a restart would not help
constexpr char kDefaultMetrics[] = "127.0.0.1:8472";
constexpr char kDefaultHealth[] = "127.0.0.1:8471";
// Recovery of a large journal, given in slices.
constexpr absl::Duration kRecoveryTime = absl::Minutes(5);

int Fail(const absl::Status& status, int code) {
  std::cerr << "cadre-coordinator: " << status.message() << "\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Control plane of Cadre: takes jobs, places them on workers.");
  app.set_version_flag("--version", cadre::kVersion);
  std::string config_file, listen, metrics_listen, health_listen, state_dir,
      ports_file;
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
  app.add_flag("--insecure", insecure, "plaintext, on loopback only");
  app.add_flag("--check-config", check_config, "exit 0 or 78");
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
  auto server = cadre::coordinator::Server::Start(
      {.config = config, .metrics = &metrics, .data = data.get()});
  if (!server.ok()) return Fail(server.status(), 1);
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
