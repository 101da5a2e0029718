#include "worker/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/proto_file.h"
#include "base/rpc/channel.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "cadre/config/v1/worker.pb.h"

namespace cadre {
namespace {

using cadre::config::v1::WorkerConfig;

constexpr int kMetricsPort = 8480;
constexpr int kHealthPort = 8490;
constexpr int kMaxCpuThreads = 1024;
constexpr int kMaxDevices = 64;

// What the command line says; unset fields leave the file's value alone.
struct Flags {
  std::string config, ports_file;
  std::optional<std::string> coordinator, worker_id, device, metrics_listen,
      health_listen, data_address, ca_file, certificate_file, key_file,
      token_file;
  std::optional<int> index, cpu_threads;
  std::optional<int> devices;
  bool insecure = false, check_config = false, version = false;
  bool per_device = false, nvtx = false;
};

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--config", flags->config,
                  "Configuration: a text-format cadre.config.v1.WorkerConfig")
      ->check(CLI::ExistingFile);
  app->add_option("--coordinator", flags->coordinator,
                  "Coordinator, host:port (default 127.0.0.1:8470)");
  app->add_option("--worker-id", flags->worker_id,
                  "Name of this worker (default <host name>.<index>)");
  app->add_option("--index", flags->index,
                  "GPU index, and the number in the default worker id "
                  "(default 0)");
  app->add_option("--device", flags->device,
                  "auto, cpu or cuda (default auto)");
  app->add_option("--metrics-listen", flags->metrics_listen,
                  "Prometheus endpoint, host:port or off (default "
                  "127.0.0.1:<8480 + index>)");
  app->add_option("--health-listen", flags->health_listen,
                  "Health for probes, host:port or off (default "
                  "127.0.0.1:<8490 + index>)");
  app->add_option("--data-address", flags->data_address,
                  "Address that peers reach this worker at (default "
                  "127.0.0.1)");
  app->add_option("--cpu-threads", flags->cpu_threads,
                  "Threads of the CPU backend (default 1)");
  app->add_option("--ca", flags->ca_file,
                  "Certificate of the coordinator's authority (PEM)");
  app->add_option("--cert", flags->certificate_file,
                  "This worker's certificate (PEM)");
  app->add_option("--key", flags->key_file, "Its private key (PEM)");
  app->add_option("--token-file", flags->token_file,
                  "File with this worker's token");
  app->add_flag("--per-device", flags->per_device,
                "Run one worker process for each GPU of this host, the ports "
                "counting up with the index");
  app->add_option("--devices", flags->devices,
                  "With --per-device: how many (default: the GPUs found)");
  app->add_flag("--nvtx", flags->nvtx,
                "On a GPU: mark the phases of each step as NVTX ranges for a "
                "profiler");
  app->add_flag("--insecure", flags->insecure,
                "Plaintext to a coordinator on loopback");
  app->add_option("--ports-file", flags->ports_file,
                  "Write the ports in use to this file once it listens");
  app->add_flag("--check-config", flags->check_config,
                "Check the configuration and exit: 0 good, 78 wrong");
  app->add_flag("--version", flags->version, "Print the version and exit");
  app->footer(
      "SIGTERM: save and move the job, then exit; a second SIGTERM aborts.\n"
      "Exit codes: 0 drained, 1 aborted, 2 usage, 78 wrong configuration.");
}

absl::StatusOr<std::string> HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, HOST_NAME_MAX) != 0 || name[0] == '\0') {
    return absl::FailedPreconditionError(
        "cannot tell the host's name; pass --worker-id and set link_domain");
  }
  return std::string(name);
}

// Ids stand in resource names and metric labels.
absl::Status CheckWorkerId(const std::string& id) {
  bool good = !id.empty() && id.size() <= 255;
  for (const char c : id) {
    good = good && (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.');
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--worker-id: '", id,
                   "' must be 1 to 255 of letters, digits, '-', '_' and '.'"));
}

absl::StatusOr<WorkerOptions> Resolve(const WorkerConfig& config,
                                      const Flags& flags) {
  WorkerOptions options;
  const auto pick = [](const std::optional<std::string>& flag,
                       const std::string& file, const std::string& fallback) {
    return flag ? *flag : !file.empty() ? file : fallback;
  };
  CADRE_ASSIGN_OR_RETURN(options.hostname, HostName());
  options.index = flags.index.value_or(config.index());
  if (options.index < 0 || options.index > 999) {
    return absl::InvalidArgumentError(
        absl::StrCat("--index: ", options.index, " is not within 0 to 999"));
  }
  options.coordinator =
      pick(flags.coordinator, config.coordinator(), options.coordinator);
  CADRE_RETURN_IF_ERROR(
      Annotate(CheckAddresses(options.coordinator), "--coordinator"));
  options.worker_id = pick(flags.worker_id, config.worker_id(),
                           absl::StrCat(options.hostname, ".", options.index));
  CADRE_RETURN_IF_ERROR(CheckWorkerId(options.worker_id));
  options.link_domain = pick({}, config.link_domain(), options.hostname);
  options.device = pick(flags.device, config.device(), options.device);
  if (options.device != "auto" && options.device != "cpu" &&
      options.device != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device: '", options.device, "' is none of auto, cpu, cuda"));
  }
  options.metrics_listen =
      pick(flags.metrics_listen, config.metrics_listen(),
           absl::StrCat("127.0.0.1:", kMetricsPort + options.index));
  options.health_listen =
      pick(flags.health_listen, config.health_listen(),
           absl::StrCat("127.0.0.1:", kHealthPort + options.index));
  options.data_address =
      pick(flags.data_address, config.data_address(), options.data_address);
  if (config.cpu_threads() > 0) options.cpu_threads = config.cpu_threads();
  options.cpu_threads = flags.cpu_threads.value_or(options.cpu_threads);
  if (options.cpu_threads < 1 || options.cpu_threads > kMaxCpuThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cpu-threads: ", options.cpu_threads,
                     " is not within 1 to ", kMaxCpuThreads));
  }
  options.labels = {config.labels().begin(), config.labels().end()};
  options.insecure = flags.insecure || config.insecure();
  options.ca_file = pick(flags.ca_file, config.ca_file(), "");
  options.certificate_file =
      pick(flags.certificate_file, config.certificate_file(), "");
  options.key_file = pick(flags.key_file, config.key_file(), "");
  options.token_file = pick(flags.token_file, config.token_file(), "");
  CADRE_ASSIGN_OR_RETURN(options.timeouts, ReadTimeouts(config.timeouts()));
  options.ports_file = flags.ports_file;
  options.nvtx = flags.nvtx;
  options.per_device = flags.per_device;
  if (!flags.per_device && flags.devices) {
    return absl::InvalidArgumentError("--devices goes with --per-device");
  }
  if (flags.per_device) {
    options.devices = flags.devices ? *flags.devices : CountGpus("/dev");
    if (options.devices < 1 || options.devices > kMaxDevices) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--per-device: ", options.devices, " devices is not within 1 to ",
          kMaxDevices, "; without GPUs give their number with --devices"));
    }
  }
  return options;
}

}  // namespace

int CountGpus(const std::string& dev) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dev, error)) {
    const std::string file = entry.path().filename();
    absl::string_view name = file;
    if (!absl::ConsumePrefix(&name, "nvidia") || name.empty()) continue;
    count += std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  }
  return count;
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv) {
  CLI::App app("Cadre worker: trains on one device for a coordinator.",
               "cadre-worker");
  Flags flags;
  AddFlags(&app, &flags);
  CommandLine line;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.exit_code = 0;
    line.message = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    line.exit_code = 2;
    line.message =
        absl::StrCat("cadre-worker: ", error.what(), "; see --help\n");
    return line;
  }
  if (flags.version) {
    line.exit_code = 0;
    line.message = absl::StrCat("cadre-worker ", kVersion, "\n");
    return line;
  }
  WorkerConfig config;
  if (!flags.config.empty()) {
    CADRE_RETURN_IF_ERROR(ReadTextProto(flags.config, &config));
  }
  CADRE_ASSIGN_OR_RETURN(line.options, Resolve(config, flags));
  if (flags.check_config) {
    line.exit_code = 0;
    line.message = "the configuration is good\n";
  }
  return line;
}

}  // namespace cadre
