#ifndef CADRE_WORKER_TRAIN_TRAINER_H_
#define CADRE_WORKER_TRAIN_TRAINER_H_

// One rank of one attempt: trains a model on its share of the data together
// with its peers, saves checkpoints, exports the result. Runs on one training
// thread; Abort, step and collective_seq may be called from any thread.
//
//   ASSIGN_OR_RETURN(auto world, CreateGlooCommunicator(...));
//   ASSIGN_OR_RETURN(TrainerInputs inputs,
//                    LoadTrainerInputs(options, exec, &observer));
//   ASSIGN_OR_RETURN(auto trainer, Trainer::Create(options, std::move(inputs),
//                                                  std::move(world),
//                                                  &observer));
//   ASSIGN_OR_RETURN(TrainOutcome outcome, trainer->Train());
//   if (outcome == TrainOutcome::kFinished) trainer->Export();

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/common/exec.h"
#include "worker/checkpoint/manifest.h"
#include "worker/comm/communicator.h"
#include "worker/device/phase_clock.h"
#include "worker/moe/link_tiers.h"
#include "worker/train/trainer_options.h"

namespace cadre {

class Clock;
class Model;
class ModelDir;
class PackedDataset;
struct PeftAdapter;

// Bytes of one rank, by what they are for; activations are the most that were
// in use at once.
struct MemoryUse {
  int64_t weights = 0;    // values that lie here, sharded ones as slices
  int64_t adapter = 0;    // of the weights, an adapter's
  int64_t gradients = 0;  // of trained parameters
  int64_t optimizer = 0;  // m, v and masters of the owned slices
  int64_t gather = 0;     // units that are gathered for use
  int64_t reduce = 0;     // buffers of reductions
  int64_t activations = 0;
  int64_t workspace = 0;  // of them, temporaries of single layers
  // The same two of the last step alone. In no sum.
  int64_t step_activations = 0, step_workspace = 0;
  // Activations as the plan has them for the batches and expert rows that came;
  // 0: not known. In no sum.
  int64_t expected_activations = 0;
  // Pieces that the activations were asked of the system in, so far. In no sum.
  int64_t allocations = 0;
  int64_t total() const {
    return weights + gradients + optimizer + gather + reduce + activations;
  }
};

// Exchanges of expert rows between ranks: of this rank, forward and backward.
struct ExchangeUse {
  double dispatch_seconds = 0.0, combine_seconds = 0.0;
  // Part of them for which computing waited.
  double exposed_seconds = 0.0;
  TierBytes dispatch_bytes{}, combine_bytes{};
};

// What became of the (token, expert) pairs of one MoE layer, over all ranks and
// micro-batches of a step.
struct MoeLayerTotals {
  int64_t dropped = 0, remapped = 0;
  int64_t padding_rows = 0;  // to fill tiles of grouped products
};

// One optimizer step, equal on every rank but for the seconds.
struct StepMetrics {
  int64_t step = 0;  // steps done, this one included
  int64_t total_steps = 0;
  double epoch = 0.0;  // passes over the data
  double loss = 0.0;   // per valid target, global
  double aux_loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t targets = 0, tokens = 0;  // of the step, global
  int64_t trained_tokens = 0;       // of the job so far, global
  double step_seconds = 0.0;
  // Parts of step_seconds. Backward is from behind the loss (whose gradient
  // comes with it), as the device saw it; forward is the rest of the passes.
  double data_seconds = 0.0, forward_seconds = 0.0, backward_seconds = 0.0,
         reduce_seconds = 0.0, optimizer_seconds = 0.0, wait_seconds = 0.0;
  double tokens_per_second = 0.0;  // global
  bool skipped = false;            // non-finite: nothing was updated
  int64_t nonfinite_total = 0;
  MemoryUse memory;  // of this rank, peak so far
  // [MoE layers][experts], summed over ranks and micro-batches.
  std::vector<std::vector<int64_t>> expert_tokens;
  // (token, expert) pairs that found no room, and that moved to another expert;
  // summed likewise, over all layers. 0 when dropless.
  int64_t dropped_pairs = 0, remapped_pairs = 0;
  int64_t padding_rows = 0;  // that grouped products computed for nothing
  // The three of them by MoE layer; empty without MoE layers.
  std::vector<MoeLayerTotals> moe_layers;
  double z_loss = 0.0;  // before its coefficient
  // Of this rank's passes, on its device (worker/device/phase_clock.h).
  PhaseSeconds phases{};
  // With expert parallelism: [MoE layers][ranks of the group] pairs that each
  // rank computed, summed over expert replicas; empty without.
  std::vector<std::vector<int64_t>> rank_tokens;
  double expert_seconds = 0.0;  // of the rank that spent most on its experts
  int64_t plan_epoch = 0;       // placement under which the step ran
  ExchangeUse exchanges;
};

// Another placement of the experts is in force from the next step on.
struct ExpertsMoved {
  int64_t step = 0;  // steps done before it
  std::shared_ptr<const ExpertPlacement> placement;
  double seconds = 0.0;        // training stood still
  int64_t max_rank_bytes = 0;  // received by the rank that received most
};

// What one expert of one layer weighs on the ranks.
struct ExpertSize {
  int64_t bytes = 0;        // weights and adapter
  int64_t state_bytes = 0;  // of the optimizer
};

struct EvalMetrics {
  int64_t step = 0;
  double loss = 0.0;  // per valid target, global
  int64_t targets = 0;
};

// This rank's part of a checkpoint is on disk.
struct FilesSaved {
  int64_t step = 0;
  std::string dir;
  std::vector<CheckpointFile> files;  // of this rank
  double loss = 0.0;                  // of the last step
  // Everything but the peers' files: what SealCheckpoint needs besides them.
  CheckpointManifest manifest;
};

enum class TrainPhase { kTrain, kEval, kSave, kExport };

// How the outside watches and steers. Called on the training thread at step
// boundaries; must not block.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // stage: "data", "model".
  virtual void OnPreparing(absl::string_view stage, int64_t done,
                           int64_t total) {}
  virtual void OnPhase(TrainPhase phase) {}
  virtual void OnStep(const StepMetrics& metrics) {}
  virtual void OnEval(const EvalMetrics& metrics) {}
  virtual void OnFilesSaved(const FilesSaved& saved) {}
  // Sealed by the trainer itself (seal_by_trainer), on rank 0.
  virtual void OnSealed(int64_t step, const std::string& dir,
                        const std::string& manifest_sha256) {}
  // A checkpoint was read to go on from.
  virtual void OnResumed(double seconds) {}
  // Something a person should know: "NONFINITE_STEP", ...
  virtual void OnEvent(absl::string_view kind, absl::string_view message) {}
  // True: save and stop at the next boundary. It is enough that one rank says
  // so; all stop at the same step.
  virtual bool StopRequested() { return false; }
  // True: save at the next boundary (once per request); any rank may ask.
  virtual bool SaveRequested() { return false; }
  // Where the experts lie at the first step; null without expert parallelism.
  // From a checkpoint: nobody who watches has ordered it.
  virtual void OnExpertsPlaced(
      const std::shared_ptr<const ExpertPlacement>& placement,
      bool from_checkpoint, const ExpertSize& size) {}
  // The newest placement that experts should move to; null: none. They move at
  // the first boundary at which all ranks give the same one.
  virtual std::shared_ptr<const ExpertPlacement> WantedPlacement() {
    return nullptr;
  }
  virtual void OnExpertsMoved(const ExpertsMoved& moved) {}
};

// What a trainer works on.
struct TrainerInputs {
  TrainerInputs();
  TrainerInputs(TrainerInputs&&) noexcept;
  TrainerInputs& operator=(TrainerInputs&&) noexcept;
  ~TrainerInputs();

  std::unique_ptr<Model> model;  // weights and adapter initialised
  std::unique_ptr<PackedDataset> train;
  std::unique_ptr<PackedDataset> eval;  // may be null
  std::string base_fingerprint;         // compared on resume
  // LoRA: plan, layout and configuration; its weights are the model's.
  std::unique_ptr<PeftAdapter> adapter;
  // Where the base came from: what an exported checkpoint is modelled on. Null
  // with random_init.
  std::unique_ptr<ModelDir> base;
  std::string config_json;  // of the base
  Exec exec;
};

enum class TrainOutcome { kFinished, kStopped };

struct ExportedArtifact {
  std::string kind;  // "adapter" or "checkpoint"
  std::string dir;
  int64_t bytes = 0;
  std::string manifest_sha256;  // of the file list that lies beside the result
};

class Trainer {
 public:
  // Checks the options, agrees with the peers on them, splits the mesh's
  // communicators, resumes where asked. `observer` and `clock` (null: the real
  // one) must outlive it. Every rank calls it at the same time.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      TrainerOptions options, TrainerInputs inputs,
      std::unique_ptr<Communicator> world, TrainObserver* observer,
      Clock* clock = nullptr);
  virtual ~Trainer() = default;

  // Steps until the last one is done and saved, or a stop was asked for.
  // Errors: ABORTED after Abort; UNAVAILABLE, DEADLINE_EXCEEDED a peer is lost;
  // OUT_OF_RANGE too many non-finite steps in a row; others name the cause.
  virtual absl::StatusOr<TrainOutcome> Train() = 0;

  // Writes the result (rank 0; the others wait for it).
  virtual absl::StatusOr<ExportedArtifact> Export() = 0;

  // Any thread: makes collectives under way fail with ABORTED.
  virtual void Abort() = 0;
  virtual int64_t step() const = 0;
  virtual int64_t total_steps() const = 0;
  // Grows with every collective.
  virtual int64_t collective_seq() const = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAINER_H_
