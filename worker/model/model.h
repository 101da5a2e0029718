#ifndef CADRE_WORKER_MODEL_MODEL_H_
#define CADRE_WORKER_MODEL_MODEL_H_

// A model that can be trained: built from a ModelSpec, with or without an
// adapter. Owns its weights, gradients and activation memory. Not thread-safe:
// one training thread. Knows nothing of jobs, protos or files' whereabouts.
//
//   ASSIGN_OR_RETURN(auto model, Model::Create(spec, options));
//   model->LoadWeights(dir);
//   for each step: ZeroGradients(); for each micro-batch:
//     model->ForwardBackward(batch, {.inv_num_targets = 1.0 / n_global});

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/router/router_overflow.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/model_spec.h"
#include "plan/pass_memory.h"  // kAllBlocks
#include "worker/comm/communicator.h"
#include "worker/device/phase_clock.h"
#include "worker/model/batch.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"
#include "worker/model/selections.h"
#include "worker/moe/expert_moves.h"
#include "worker/moe/expert_parallel.h"
#include "worker/moe/expert_runtime.h"
#include "worker/moe/link_tiers.h"

namespace cadre {

// How the model's MoE layers are routed, beyond its configuration.
struct MoeOptions {
  OverflowPolicy overflow = OverflowPolicy::kDropless;
  // Of the other policies: an expert takes factor x T k / E of the tokens of a
  // rank's micro-batch, T its tokens, padding included.
  double capacity_factor = 1.25;
  // Unset: the model's own.
  std::optional<double> aux_loss_coef;
  double z_loss_coef = 0.0;
};

struct ModelOptions {
  Exec exec;
  // Of activations and weight matrices. CPU: kF32 in production, kF64 for
  // finite-difference tests. CUDA: kBF16, or kF32 to compare; what is small or
  // sensitive stays f32 beside kBF16 (context.h, param_dtype).
  DType dtype = DType::kF32;
  // Unset: full fine-tuning, every parameter that can have a gradient is
  // trained. Set: the base is frozen and this adapter is trained.
  std::optional<LoraPlan> lora;
  // The first so many blocks (kAllBlocks: all) keep only their inputs and
  // routing decisions and are replayed in the backward pass.
  int replayed_blocks = 0;
  // Of a full micro-batch: on the CPU the arenas of training passes are made
  // for as many before the first. 0: for those of the first passes.
  int64_t pass_tokens = 0;
  // On a GPU: phases of a pass as NVTX ranges.
  bool nvtx = false;
  uint64_t dropout_seed = 0;
  // Set: the routed experts are spread over a group of ranks and this model
  // holds those of one of them (Parameter::rows). Unset: it holds all.
  std::optional<ExpertParallel> expert_parallel;
  MoeOptions moe;
  // Of a micro-batch's tokens on their way to other ranks' experts: one chunk
  // is computed while another travels. 1 or 2.
  int dispatch_chunks = 1;
  // False: exchanges run on the training thread; the same bits.
  bool overlap_dispatch = false;
  // More than one shard: of the dense base this model holds one slice of each
  // unit, and UnitAccess brings the whole for as long as it is used.
  DenseSharding dense_sharding;
  // For comparisons; must outlive the model. Null: it chooses, unrecorded.
  Selections* selections = nullptr;
};

// Whom a model talks to during a pass. Each is used from one thread at a time
// and by nothing else meanwhile; all must outlive the model.
struct ModelGroups {
  // The ranks that share one copy of the experts, for dispatch and combine
  // only: rank and size are those of ModelOptions::expert_parallel. Null with
  // one rank.
  Communicator* expert_dispatch = nullptr;
  // How far away those ranks are, for counting. Empty: not known.
  std::vector<LinkTier> expert_tiers;
  // All ranks of the job: sums the statistics of auxiliary losses, once a
  // micro-batch. Null: this rank's are all there are.
  Communicator* world = nullptr;
  // Brings the units of a sharded dense base; null without shards.
  UnitAccess* units = nullptr;
};

struct LossScale {
  // 1 / valid targets of the whole global step (parallelism.md section 2).
  double inv_num_targets = 1.0;
  // Weight of this micro-batch's auxiliary loss: 1 / micro-batches of the step
  // and rank (the loss itself is over all ranks, ModelGroups::world), or
  // 1 / micro-batches of all ranks where each rank's is its own.
  double aux_weight = 1.0;
  // Selects the dropout masks of this micro-batch; the same value repeats them.
  uint64_t dropout_step = 0;
};

// What became of the (token, expert) pairs of one MoE layer.
struct MoeLayerCounts {
  int64_t routed = 0;  // chosen by routers, padding excluded
  int64_t dropped = 0;
  std::array<int64_t, kRemapRounds> remapped = {};  // by round
  // Rows that grouped products computed for nothing, to fill their tiles, in
  // the forward pass; of the experts here, whoever sent their rows.
  int64_t padding_rows = 0;
  int64_t capacity = 0;  // of an expert, in force; 0: dropless
};

struct ForwardResult {
  double loss_sum = 0.0;  // sum over valid targets, natural log
  // This rank's share: the sum over ranks is the loss of the micro-batch,
  // before its coefficient; 0 where there is none.
  double aux_loss = 0.0;
  double z_loss = 0.0;  // likewise
  // [MoE layers][experts] tokens routed to each expert, padding excluded.
  std::vector<std::vector<int64_t>> expert_tokens;
  std::vector<MoeLayerCounts> moe_counts;  // [MoE layers]
  ExpertTraffic traffic;                   // of the pass
  PhaseSeconds phases{};                   // of the device, where there is one
  double backward_seconds = 0.0;           // of them, behind the loss
};

// What a test or a program may want to look at; null members are not filled.
struct ForwardCapture {
  std::vector<float>* logits = nullptr;               // [T, vocab]
  std::vector<std::vector<float>>* hidden = nullptr;  // models.md 7: hidden.i
  std::vector<std::vector<float>>* router_logits = nullptr;  // per MoE layer
};

// Memory of activations and temporaries since construction.
struct ArenaStats {
  int64_t allocations = 0;  // from the system; none after the first step
  int64_t peak_bytes = 0;
  int64_t scratch_peak_bytes = 0;  // of them, of what no backward pass reads
  // Likewise, since RestartRecentPeaks.
  int64_t recent_peak_bytes = 0, recent_scratch_peak_bytes = 0;
  // What plan/pass_memory.h says of peak_bytes for the batches and the rows
  // that came; 0 on a GPU and before the first training pass.
  int64_t expected_bytes = 0;
  int64_t reserved_bytes = 0;
};

class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(const ModelSpec& spec,
                                                       ModelOptions options);
  virtual ~Model() = default;

  // Before the first pass of a model that is not alone. From then on every
  // pass is collective: all ranks call it the same number of times in the same
  // order, with an empty batch (no ids, cu_seqlens {0}) where there is no data.
  virtual absl::Status Connect(const ModelGroups& groups) = 0;

  virtual ParameterRegistry& parameters() = 0;
  // Weights and adapters of the routed experts, model order.
  virtual absl::Span<const ExpertParameter> expert_parameters() const = 0;
  // Where experts lie from the next pass on; their rows have moved already
  // (worker/moe/expert_moves.h). Same shape as the placement in force. The same
  // on every rank, between steps only.
  virtual absl::Status SetPlacement(const ExpertPlacement& placement) = 0;
  // In force; null where the model was made without.
  virtual const ExpertParallel* expert_parallel() const = 0;
  virtual const ModelSpec& spec() const = 0;
  // Of the dense base; none without sharding.
  virtual const DenseUnits& units() const = 0;

  // Reads every base tensor (converted to the model's dtype) from `dir`.
  virtual absl::Status LoadWeights(const ModelDir& dir) = 0;
  // Deterministic random weights (from-scratch training, benchmarks).
  virtual absl::Status InitWeights(uint64_t seed) = 0;
  // New adapters: A uniform in +-1/sqrt(in), B = 0 (models.md 6).
  virtual absl::Status InitAdapter(uint64_t seed) = 0;

  virtual ArenaStats arena_stats() const = 0;
  virtual void RestartRecentPeaks() = 0;

  // Loss only.
  virtual absl::StatusOr<ForwardResult> Forward(
      const Batch& batch, const ForwardCapture& capture) = 0;
  // Adds d(loss_sum * inv_num_targets + aux terms)/dp into every trainable
  // parameter's grad.
  virtual absl::StatusOr<ForwardResult> ForwardBackward(
      const Batch& batch, const LossScale& scale) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_MODEL_H_
