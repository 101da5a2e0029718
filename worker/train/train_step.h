#ifndef CADRE_WORKER_TRAIN_TRAIN_STEP_H_
#define CADRE_WORKER_TRAIN_TRAIN_STEP_H_

// One optimizer step and one evaluation pass of one rank, together with its
// peers: micro-batches, loss, gradient sums, norm, update. Knows nothing of
// files, stops or schedules. Not thread-safe; owns the optimizer and what
// brings and sums parameters over the mesh, views the rest.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "kernels/common/exec.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/model_shards.h"
#include "worker/shard/optimizer.h"
#include "worker/train/trainer.h"

namespace cadre {

struct TrainStepOptions {
  Exec exec;
  OptimizerOptions optimizer;
  int64_t micro_batches = 1;  // a step and rank
  // Of all ranks, for counting what goes between them; may be empty.
  std::vector<std::string> link_domains;
  // For tests: sees the sums of the step's gradients before the update.
  std::function<void(const Optimizer&)> before_update;
};

class TrainStepRunner {
 public:
  // All pointers outlive it; connects the model.
  static absl::StatusOr<std::unique_ptr<TrainStepRunner>> Create(
      const TrainStepOptions& options, Model* model,
      const MeshCommunicators* communicators, Clock* clock);

  // Trains on `data` (this rank's share of step `step`, which may be empty).
  // Fills what it knows of the metrics. A loss or norm that is not finite
  // updates nothing and sets `skipped`.
  absl::StatusOr<StepMetrics> Run(const TrainStep& data, int64_t step,
                                  double learning_rate);

  // Loss per target over all ranks' batches (the same number on each).
  absl::StatusOr<EvalMetrics> Evaluate(const std::vector<Batch>& batches);

  Optimizer& optimizer() { return *optimizer_; }
  // After values were put into the optimizer's slots from outside.
  absl::Status SpreadValues();
  MemoryUse memory() const;

 private:
  // What the micro-batches of this rank add up to.
  struct Totals {
    double loss_sum = 0.0;
    double aux_sum = 0.0, z_sum = 0.0;
    std::vector<MoeLayerTotals> moe_layers;
    std::vector<std::vector<int64_t>> expert_tokens;
    PhaseSeconds phases{};
    double backward_seconds = 0.0;
    std::vector<std::vector<int64_t>> rank_tokens;
    double expert_seconds = 0.0;
    ExchangeUse exchanges;
  };

  TrainStepRunner(const TrainStepOptions& options, Model* model,
                  const MeshCommunicators* communicators, Clock* clock);
  // How many micro-batches every rank runs: the most that any has.
  absl::StatusOr<int64_t> AgreeOnBatches(int64_t mine);
  absl::StatusOr<Totals> ForwardBackward(const TrainStep& data, int64_t step,
                                         int64_t global_targets);
  absl::Status ReduceTotals(Totals* totals);
  absl::Status ReduceRankTotals(Totals* totals);
  absl::StatusOr<double> GradientNorm();
  // To ranks that hold the same: updated slices, then spare copies of experts.
  absl::Status ShareValues();

  const TrainStepOptions options_;
  Model* const model_;
  const MeshCommunicators* const communicators_;
  Communicator* const world_;
  Clock* const clock_;
  std::unique_ptr<ModelShards> shards_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<int64_t> experts_per_layer_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAIN_STEP_H_
