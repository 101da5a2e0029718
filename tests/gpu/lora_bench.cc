// Trains a LoRA adapter on a model of random weights, without daemons:
// lora_bench CONFIG TOKENIZER_DIR DATA TOKENS STEPS [--keep] [--ranks=N]
//   [--shards=S] [--experts=P] [--replayed=B]
// The first B blocks are computed again in the backward pass; all without it;
// N GPUs, a thread and
// a row each, with the dense part in S shards and the experts over P ranks. The
// trainer logs each step with its phases; JSON lines on stdout, of rank 0.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "plan/pass_memory.h"
#include "worker/comm/local_communicator.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/device/device.h"
#include "worker/train/load_inputs.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

class Printer final : public TrainObserver {
 public:
  void OnStep(const StepMetrics& m) override {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    std::printf(
        "{\"bench\":\"lora\",\"step\":%lld,\"loss\":%.6f,\"norm\":%.6f,"
        "\"seconds\":%.4f,\"tokens_per_second\":%.1f,\"used_gb\":%.2f}\n",
        static_cast<long long>(m.step), m.loss, m.grad_norm, m.step_seconds,
        m.tokens_per_second, 1e-9 * static_cast<double>(total - free));
    std::fflush(stdout);
  }
  void OnPreparing(absl::string_view stage, int64_t done,
                   int64_t total) override {
    std::fprintf(stderr, "preparing %s %lld/%lld\n", std::string(stage).c_str(),
                 static_cast<long long>(done), static_cast<long long>(total));
  }
};

// One rank, from loading to its last step.
absl::Status Train(const TrainerOptions& options, KeyValueStore* store) {
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                         OpenCudaDevice(options.rank));
  Printer printer;
  TrainObserver silent;
  TrainObserver* const observer = options.rank == 0 ? &printer : &silent;
  CADRE_ASSIGN_OR_RETURN(TrainerInputs inputs,
                         LoadTrainerInputs(options, device->exec(), observer));
  std::unique_ptr<Communicator> world =
      std::move(CreateLocalCommunicators(1, {}).front());
  if (options.mesh.world_size > 1) {
    CADRE_ASSIGN_OR_RETURN(
        world, CreateNcclCommunicator({.rank = options.rank,
                                       .size = options.mesh.world_size,
                                       .exec = device->exec(),
                                       .key_prefix = "bench/"},
                                      store));
  }
  CADRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(options, std::move(inputs), std::move(world), observer));
  return trainer->Train().status();
}

// The number behind --NAME=, or what stands in for it.
int Number(int argc, char** argv, const std::string& name, int absent = 1) {
  const std::string prefix = "--" + name + "=";
  for (int i = 6; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.compare(0, prefix.size(), prefix) == 0) {
      return std::atoi(argument.c_str() + prefix.size());
    }
  }
  return absent;
}

int Main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr,
                 "lora_bench CONFIG TOKENIZER_DIR DATA TOKENS STEPS "
                 "[--ranks=N] [--shards=S] [--experts=P] [--replayed=B]\n");
    return 2;
  }
  // Ranks are threads, and NCCL would have one read the memory of another,
  // which an arena does not open to it.
  setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
  TrainerOptions options;
  options.job = "lora_bench";
  options.mesh = {.world_size = Number(argc, argv, "ranks"),
                  .fsdp_shard_group_size = Number(argc, argv, "shards"),
                  .expert_parallel_size = Number(argc, argv, "experts")};
  options.model.config = argv[1];
  options.model.random_init = true;
  options.model.tokenizer = argv[2];
  options.model.replayed_blocks = Number(argc, argv, "replayed", kAllBlocks);
  options.data.train = {argv[3]};
  options.data.format = "text";
  options.data.max_seq_len = std::atoll(argv[4]);
  options.tuning.lora_target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  options.training.max_steps = std::atoll(argv[5]);
  options.training.global_batch_size = options.mesh.world_size;
  options.training.micro_batch_size = 1;
  options.training.learning_rate = 1e-4;

  InMemoryStore store;
  std::vector<absl::Status> done(options.mesh.world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.mesh.world_size; ++rank) {
    threads.emplace_back([&store, &done, options, rank]() mutable {
      options.rank = rank;
      done[rank] = Train(options, &store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int failed = 0;
  for (const absl::Status& status : done) {
    if (status.ok()) continue;
    failed = 1;
    std::printf("{\"bench\":\"lora\",\"error\":\"%s\"}\n",
                status.ToString().c_str());
  }
  return failed;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Main(argc, argv); }
