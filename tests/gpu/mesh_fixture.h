#ifndef CADRE_TESTS_GPU_MESH_FIXTURE_H_
#define CADRE_TESTS_GPU_MESH_FIXTURE_H_

// Trains a tiny model over a mesh of ranks that are threads. With one GPU the
// ranks share it and their collectives go through the host; with as many as
// there are ranks, each has its own and they go through NCCL.

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/device_tensor.h"
#include "tests/gpu/staged_communicator.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/device/device.h"
#include "worker/train/tiny_config.h"
#include "worker/train/trainer_fixture.h"

namespace cadre {

// Wide enough for rows to spread over all experts.
inline std::string MeshConfig() {
  return testing::TinyConfig({.hidden = 64,
                              .layers = 3,
                              .dense_width = 96,
                              .expert_width = 32,
                              .num_experts = 8,
                              .top_k = 3});
}

struct Layout {
  int ranks = 1, shards = 1, experts = 1;
};

class MeshCudaFixture : public TrainerTest {
 protected:
  explicit MeshCudaFixture(DType dtype) : dtype_(dtype) {}

  void SetUp() override {
    // Ranks are threads here, and NCCL would have one read the memory of the
    // other, which an arena does not open to it.
    setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1);
    for (int gpu = 0;; ++gpu) {
      const auto device = OpenCudaDevice(gpu);
      if (!device.ok()) {
        if (gpu == 0) {
          GTEST_SKIP() << "no GPU: " << std::string(device.status().message());
        }
        return;
      }
      num_gpus_ = gpu + 1;
    }
  }

  TrainerOptions OptionsOf(const Layout& layout, TuningOptions::Method method) {
    TrainerOptions options = Options(layout.ranks, method);
    options.mesh.fsdp_shard_group_size = layout.shards;
    options.mesh.expert_parallel_size = layout.experts;
    options.model.replayed_blocks = kAllBlocks;
    return options;
  }

  virtual std::unique_ptr<PackedDataset> TrainData(const TrainerOptions& o) {
    return Data(o, 40);
  }

  TrainerInputs InputsOn(const Exec& exec, const TrainerOptions& o) {
    TrainerInputs inputs;
    inputs.exec = exec;
    inputs.config_json = MeshConfig();
    inputs.base_fingerprint = "tiny";
    const ModelSpec spec = testing::Must(ParseModelSpec(MeshConfig()));
    ModelOptions model;
    model.exec = exec;
    model.dtype = dtype_;
    model.overlap_dispatch = true;
    model.replayed_blocks = o.model.replayed_blocks;
    if (o.tuning.method == kLora) {
      model.lora = testing::Must(
          PlanLora(spec, {.rank = o.tuning.lora_rank,
                          .alpha = o.tuning.lora_alpha,
                          .targets = o.tuning.lora_target_modules}));
      inputs.adapter = std::make_unique<PeftAdapter>();
      inputs.adapter->plan = *model.lora;
    }
    model.moe.overflow = o.moe.overflow;
    model.moe.capacity_factor = o.moe.capacity_factor;
    testing::Must(
        PlaceModel(spec, testing::Must(Mesh::Create(o.mesh)), o.rank, &model,
                   {.spare_slots_per_rank = o.moe.spare_slots_per_rank,
                    .placement = o.moe.placement.get()}));
    inputs.model = testing::Must(Model::Create(spec, std::move(model)));
    testing::Must(inputs.model->InitWeights(11));
    testing::Must(inputs.model->InitAdapter(12));
    inputs.train = TrainData(o);
    inputs.eval = Data(o, 9);
    return inputs;
  }

  // Trains and exports; weights of the result are not read.
  std::vector<std::unique_ptr<RankRun>> RunOnGpus(
      const TrainerOptions& options, int64_t stop_at = -1,
      const std::function<void(int rank, Recorder&)>& prepare = nullptr) {
    const int ranks = options.mesh.world_size;
    const bool nccl = ranks > 1 && num_gpus_ >= ranks;
    auto local =
        CreateLocalCommunicators(ranks, {.timeout = absl::Seconds(50)});
    InMemoryStore store;
    std::vector<std::unique_ptr<RankRun>> runs;
    for (int r = 0; r < ranks; ++r) runs.push_back(std::make_unique<RankRun>());
    runs.back()->observer.stop_at = stop_at;
    for (int r = 0; prepare && r < ranks; ++r) prepare(r, runs[r]->observer);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        RankRun& run = *runs[r];
        TrainerOptions mine = options;
        mine.rank = r;
        const auto device = testing::Must(OpenCudaDevice(r % num_gpus_));
        const Exec exec = device->exec();
        TrainerInputs inputs = InputsOn(exec, mine);
        std::unique_ptr<Communicator> world =
            nccl ? testing::Must(
                       CreateNcclCommunicator({.rank = r,
                                               .size = ranks,
                                               .exec = exec,
                                               .key_prefix = "t/",
                                               .timeout = absl::Seconds(50)},
                                              &store))
                 : testing::StageOnHost(std::move(local[r]), exec.stream);
        auto trainer = Trainer::Create(mine, std::move(inputs),
                                       std::move(world), &run.observer);
        run.status = trainer.status();
        if (!trainer.ok()) return;
        const auto outcome = (*trainer)->Train();
        run.status = outcome.status();
        if (!outcome.ok() || *outcome == TrainOutcome::kStopped) return;
        run.status = (*trainer)->Export().status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return runs;
  }

  double LossTolerance() const { return dtype_ == DType::kF32 ? 3e-5 : 2e-2; }
  void ExpectSameLosses(const RankRun& a, size_t first, const RankRun& b) {
    ASSERT_EQ(a.observer.steps.size(), first + b.observer.steps.size());
    for (size_t i = 0; i < b.observer.steps.size(); ++i) {
      const StepMetrics& x = a.observer.steps[first + i];
      const StepMetrics& y = b.observer.steps[i];
      EXPECT_NEAR(x.loss, y.loss, LossTolerance() * x.loss) << "step " << i;
      EXPECT_NEAR(x.grad_norm, y.grad_norm, 50 * LossTolerance() * x.grad_norm)
          << "step " << i;
      EXPECT_EQ(x.targets, y.targets);
    }
  }

  static Weights AdapterOf(const std::string& dir) {
    const ModelSpec spec = testing::Must(ParseModelSpec(MeshConfig()));
    const PeftAdapter adapter = testing::Must(ReadPeftAdapter(dir, spec));
    Weights out;
    for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
      out[adapter.plan.modules[i].a_name()] = adapter.weights[i].a;
      out[adapter.plan.modules[i].b_name()] = adapter.weights[i].b;
    }
    return out;
  }

  const DType dtype_;
  int num_gpus_ = 0;
};

}  // namespace cadre

#endif  // CADRE_TESTS_GPU_MESH_FIXTURE_H_
