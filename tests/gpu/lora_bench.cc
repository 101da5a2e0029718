// Trains a LoRA adapter on a model of random weights on one GPU, without
// daemons: lora_bench CONFIG TOKENIZER_DIR DATA TOKENS STEPS [--keep]
// --keep: activations are kept instead of computed again. The trainer logs each
// step with its phases; JSON lines on stdout.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/gpu/device_tensor.h"
#include "worker/comm/local_communicator.h"
#include "worker/device/device.h"
#include "worker/train/load_inputs.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

using testing::Must;

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

int Main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(
        stderr, "lora_bench CONFIG TOKENIZER_DIR DATA TOKENS STEPS [--keep]\n");
    return 2;
  }
  TrainerOptions options;
  options.job = "lora_bench";
  options.mesh.world_size = 1;
  options.model.config = argv[1];
  options.model.random_init = true;
  options.model.tokenizer = argv[2];
  options.model.activation_checkpointing =
      argc < 7 || std::string(argv[6]) != "--keep";
  options.data.train = {argv[3]};
  options.data.format = "text";
  options.data.max_seq_len = std::atoll(argv[4]);
  options.tuning.lora_target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  options.training.max_steps = std::atoll(argv[5]);
  options.training.global_batch_size = 1;
  options.training.micro_batch_size = 1;
  options.training.learning_rate = 1e-4;

  const std::unique_ptr<Device> device = Must(OpenCudaDevice(0));
  Printer printer;
  TrainerInputs inputs =
      Must(LoadTrainerInputs(options, device->exec(), &printer));
  const std::unique_ptr<Trainer> trainer = Must(Trainer::Create(
      options, std::move(inputs),
      std::move(CreateLocalCommunicators(1, {}).front()), &printer));
  Must(trainer->Train().status());
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::Main(argc, argv); }
