#ifndef CADRE_WORKER_OPTIONS_H_
#define CADRE_WORKER_OPTIONS_H_

// What cadre-worker is started with: the command line over the configuration
// file over the defaults.

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/timeouts.h"

namespace cadre {

struct WorkerOptions {
  std::string coordinator = "127.0.0.1:8470";
  std::string worker_id;  // "{host}.{index}"
  std::string hostname;
  std::string link_domain;
  int index = 0;
  std::string device = "auto";
  std::string metrics_listen, health_listen;
  std::string data_address = "127.0.0.1";
  int cpu_threads = 1;
  std::map<std::string, std::string> labels;
  bool insecure = false;
  // In PEM; see cadre.config.v1.WorkerConfig.
  std::string ca_file, certificate_file, key_file, token_file;
  Timeouts timeouts;
  // Where the ports in use are written to, "" for nowhere.
  std::string ports_file;
  // One worker process for each of `devices` devices, see worker/supervisor.h.
  bool per_device = false;
  int devices = 0;
};

struct CommandLine {
  // Set: there is nothing to run; `message` has been asked for (--help,
  // --version, --check-config) or says what is wrong with the arguments.
  std::optional<int> exit_code;
  std::string message;
  WorkerOptions options;
};

// GPUs that this process may open, by their device files below `dev`.
int CountGpus(const std::string& dev);

// INVALID_ARGUMENT and the like: the configuration is wrong (exit 78).
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

}  // namespace cadre

#endif  // CADRE_WORKER_OPTIONS_H_
