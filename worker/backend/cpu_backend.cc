#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "worker/backend/backend.h"
#include "worker/backend/load_barrier.h"
#include "worker/backend/metered_communicator.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/local_communicator.h"
#include "worker/train/load_inputs.h"

namespace cadre {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() == 2 && absl::StartsWith(parts[0], "model name")) {
      return std::string(absl::StripAsciiWhitespace(parts[1]));
    }
  }
  return "CPU";
}

// The machine's memory, or the control group's limit where that is lower.
int64_t MemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
                  static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  for (const char* path : {"/sys/fs/cgroup/memory.max",
                           "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (file >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

class CpuBackend final : public DeviceBackend {
 public:
  explicit CpuBackend(int num_threads)
      : pool_(num_threads),
        facts_{.backend = "cpu",
               .name = ProcessorName(),
               .memory_bytes = MemoryBytes()} {}

  const DeviceFacts& facts() const override { return facts_; }
  absl::Status CanTrain() const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerRequest& request) override {
    const Exec exec{.backend = Backend::kCpu, .pool = &pool_};
    CADRE_ASSIGN_OR_RETURN(
        TrainerInputs inputs,
        LoadTrainerInputs(request.options, exec, request.observer));
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world, Meet(request));
    return Trainer::Create(
        request.options, std::move(inputs),
        MeterCollectives(std::move(world), request.collectives),
        request.observer);
  }

 private:
  static absl::StatusOr<std::unique_ptr<Communicator>> Meet(
      const TrainerRequest& request) {
    const int size = request.options.mesh.world_size;
    if (size == 1) {
      return std::move(
          CreateLocalCommunicators(1, {.timeout = request.collective_timeout})
              .front());
    }
    const std::string prefix = absl::StrCat(request.options.job, "/",
                                            request.options.attempt_epoch, "/");
    CADRE_RETURN_IF_ERROR(AwaitLoaded(request, prefix));
    return CreateGlooCommunicator(
        {.rank = request.options.rank,
         .size = size,
         .bind_address = request.data_address,
         .key_prefix = prefix,
         .timeout = request.collective_timeout,
         .rendezvous_timeout = request.rendezvous_timeout},
        request.store);
  }

  ThreadPool pool_;
  const DeviceFacts facts_;
};

}  // namespace

std::unique_ptr<DeviceBackend> CreateCpuBackend(int num_threads) {
  return std::make_unique<CpuBackend>(std::max(1, num_threads));
}

}  // namespace cadre
