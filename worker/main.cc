// cadre-worker: one device of the fleet.

#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/systemd/notifier.h"
#include "worker/daemon.h"
#include "worker/options.h"
#include "worker/supervisor.h"

namespace {

// EX_CONFIG: a supervisor must not start the process again as it is.
constexpr int kExitConfig = 78;
constexpr int kExitRetry = 1;

int Fail(const absl::Status& status) {
  std::cerr << "cadre-worker: " << status.message() << "\n";
  return kExitConfig;
}

// First signal: drain; second: abort.
void HandleSignals(const sigset_t& signals, const std::atomic<bool>& done,
                   cadre::Notifier* notifier, cadre::WorkerDaemon* daemon) {
  bool draining = false;
  const timespec slice{.tv_sec = 0, .tv_nsec = 200'000'000};
  while (!done) {
    if (sigtimedwait(&signals, nullptr, &slice) < 0) continue;
    if (draining) {
      CADRE_LOG(WARNING) << "second signal: leaving without a save";
      daemon->Abort();
    } else {
      draining = true;
      notifier->Stopping("draining: saving and handing over the job");
      daemon->Drain();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<cadre::CommandLine> line =
      cadre::ParseCommandLine(argc, argv);
  if (!line.ok()) return Fail(line.status());
  if (line->exit_code) {
    (*line->exit_code == 0 ? std::cout : std::cerr) << line->message;
    return *line->exit_code;
  }

  // Before any thread, so that all inherit it: only HandleSignals takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  if (line->options.per_device) {
    return cadre::RunSupervisor(std::filesystem::read_symlink("/proc/self/exe"),
                                {argv + 1, argv + argc}, line->options,
                                signals);
  }
  cadre::Notifier notifier = cadre::Notifier::FromEnvironment();

  absl::StatusOr<cadre::WorkerDaemon> daemon =
      cadre::WorkerDaemon::Start(line->options);
  if (!daemon.ok()) {
    const int code = Fail(daemon.status());
    return absl::IsUnavailable(daemon.status()) ? kExitRetry : code;
  }
  notifier.Ready(absl::StrCat("worker ", line->options.worker_id,
                              ", coordinator ", line->options.coordinator));
  const cadre::Watchdog watchdog(&notifier, [&] { return daemon->rounds(); });
  std::atomic<bool> done{false};
  std::thread signal_thread(
      [&] { HandleSignals(signals, done, &notifier, &daemon.value()); });
  const cadre::AgentExit exit = daemon->Wait();
  done = true;
  signal_thread.join();
  CADRE_LOG(INFO) << "leaving with exit code " << exit.exit_code << ": "
                  << exit.reason;
  return exit.exit_code;
}
