#include "worker/train/train_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/expert_placement.h"
#include "worker/moe/expert_moves.h"
#include "worker/moe/expert_parallel.h"
#include "worker/moe/expert_runtime.h"
#include "worker/moe/link_tiers.h"

namespace cadre {
namespace {

void Add(std::vector<std::vector<int64_t>>& into,
         const std::vector<std::vector<int64_t>>& from) {
  for (size_t layer = 0; layer < std::min(into.size(), from.size()); ++layer) {
    for (size_t e = 0; e < from[layer].size(); ++e) {
      into[layer][e] += from[layer][e];
    }
  }
}

// What a rank runs that has fewer batches than its peers, or only padding: the
// collectives of a pass are the same on every rank.
const Batch& BatchOrEmpty(const std::vector<Batch>& batches, int64_t i) {
  static const Batch* const empty = new Batch{.cu_seqlens = {0}};
  if (i >= std::ssize(batches) || batches[i].num_real_tokens() == 0) {
    return *empty;
  }
  return batches[i];
}

void Add(ExchangeUse* use, const ExpertTraffic& traffic) {
  use->dispatch_seconds += traffic.dispatch_seconds;
  use->combine_seconds += traffic.combine_seconds;
  use->exposed_seconds += traffic.exposed_seconds;
  for (size_t tier = 0; tier < kNumLinkTiers; ++tier) {
    use->dispatch_bytes[tier] += traffic.dispatch_tiers[tier];
    use->combine_bytes[tier] += traffic.combine_tiers[tier];
  }
}

// Seconds since the last call.
class Lap {
 public:
  explicit Lap(Clock* clock) : clock_(clock), at_(clock->Monotonic()) {}
  double operator()() {
    const absl::Duration now = clock_->Monotonic();
    const double seconds = absl::ToDoubleSeconds(now - at_);
    at_ = now;
    return seconds;
  }

 private:
  Clock* const clock_;
  absl::Duration at_;
};

}  // namespace

TrainStepRunner::TrainStepRunner(const TrainStepOptions& options, Model* model,
                                 const MeshCommunicators* communicators,
                                 Clock* clock)
    : options_(options),
      model_(model),
      communicators_(communicators),
      world_(communicators->world()),
      clock_(clock) {
  for (const BlockSpec& block : model->spec().blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      experts_per_layer_.push_back(moe->num_experts);
    }
  }
}

absl::StatusOr<std::unique_ptr<TrainStepRunner>> TrainStepRunner::Create(
    const TrainStepOptions& options, Model* model,
    const MeshCommunicators* communicators, Clock* clock) {
  std::unique_ptr<TrainStepRunner> runner(
      new TrainStepRunner(options, model, communicators, clock));
  CADRE_ASSIGN_OR_RETURN(runner->shards_,
                         ModelShards::Create(options.exec, &model->parameters(),
                                             &model->units(), communicators));
  const int rank = runner->world_->rank();
  CADRE_RETURN_IF_ERROR(model->Connect(
      {.expert_dispatch = communicators->dispatch(),
       .expert_tiers = LinkTiers(
           options.link_domains,
           communicators->mesh().GroupRanks(MeshGroup::kExpertParallel, rank),
           rank),
       .world = runner->world_->size() > 1 ? runner->world_ : nullptr,
       .units = runner->shards_->units()}));
  if (model->parameters().Trainable().empty()) {
    return absl::InvalidArgumentError("the model has no trainable parameter");
  }
  CADRE_ASSIGN_OR_RETURN(
      runner->optimizer_,
      Optimizer::Create(options.exec, runner->shards_->owned(),
                        options.optimizer, /*may_be_empty=*/true));
  return runner;
}

absl::Status TrainStepRunner::SpreadValues() {
  CADRE_RETURN_IF_ERROR(optimizer_->RoundValues());
  return ShareValues();
}

absl::Status TrainStepRunner::ShareValues() {
  CADRE_RETURN_IF_ERROR(shards_->GatherValues());
  const ExpertParallel* const experts = model_->expert_parallel();
  Communicator* const peers = communicators_->group(MeshGroup::kExpertParallel);
  if (experts == nullptr || peers == nullptr) return absl::OkStatus();
  return SpreadFromHome(options_.exec, peers, *experts,
                        model_->expert_parameters());
}

MemoryUse TrainStepRunner::memory() const {
  const ModelShards::Memory shards = shards_->memory();
  const ArenaStats arenas = model_->arena_stats();
  return {.weights = shards.weights,
          .adapter = shards.adapter,
          .gradients = shards.gradients,
          .optimizer = optimizer_->state_bytes(),
          .gather = shards.gather,
          .reduce = shards.reduce,
          .activations = arenas.peak_bytes,
          .workspace = arenas.scratch_peak_bytes,
          .step_activations = arenas.recent_peak_bytes,
          .step_workspace = arenas.recent_scratch_peak_bytes,
          .expected_activations = arenas.expected_bytes,
          .allocations = arenas.allocations};
}

absl::StatusOr<int64_t> TrainStepRunner::AgreeOnBatches(int64_t mine) {
  CADRE_RETURN_IF_ERROR(world_->AllReduceMax(absl::MakeSpan(&mine, 1)));
  return mine;
}

absl::StatusOr<double> TrainStepRunner::GradientNorm() {
  CADRE_ASSIGN_OR_RETURN(double squares, optimizer_->GradientSquares());
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(&squares, 1)));
  return std::sqrt(squares);
}

absl::StatusOr<StepMetrics> TrainStepRunner::Run(const TrainStep& data,
                                                 int64_t step,
                                                 double learning_rate) {
  Lap lap(clock_);
  model_->RestartRecentPeaks();
  StepMetrics metrics;
  metrics.learning_rate = learning_rate;
  // The one divisor of the step, before the first backward pass: the loss is a
  // mean over the whole global batch, never a mean of means.
  std::array<int64_t, 2> sums = {0, 0};  // targets, tokens
  for (const Batch& batch : data.micro_batches) {
    sums[0] += batch.num_targets();
    sums[1] += batch.num_real_tokens();
  }
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(sums)));
  metrics.targets = sums[0];
  metrics.tokens = sums[1];
  metrics.reduce_seconds = lap();

  CADRE_RETURN_IF_ERROR(shards_->ZeroGradients());
  CADRE_ASSIGN_OR_RETURN(Totals totals,
                         ForwardBackward(data, step, metrics.targets));
  const double passes = lap();
  metrics.backward_seconds = std::min(totals.backward_seconds, passes);
  metrics.forward_seconds = passes - metrics.backward_seconds;

  const ExpertParallel* const experts = model_->expert_parallel();
  Communicator* const peers = communicators_->group(MeshGroup::kExpertParallel);
  // Spare copies of an expert work for its home slot.
  if (experts != nullptr && peers != nullptr) {
    CADRE_RETURN_IF_ERROR(SumCopiesAtHome(options_.exec, peers, *experts,
                                          model_->expert_parameters()));
  }
  CADRE_RETURN_IF_ERROR(shards_->ReduceGradients());
  if (options_.before_update) options_.before_update(*optimizer_);
  CADRE_RETURN_IF_ERROR(ReduceTotals(&totals));
  metrics.reduce_seconds += lap();

  const double targets = static_cast<double>(metrics.targets);
  metrics.loss = metrics.targets > 0 ? totals.loss_sum / targets : 0.0;
  // The ranks' shares of a micro-batch's auxiliary loss add up to it.
  metrics.aux_loss =
      totals.aux_sum / static_cast<double>(options_.micro_batches);
  metrics.z_loss = totals.z_sum / static_cast<double>(options_.micro_batches);
  metrics.expert_tokens = std::move(totals.expert_tokens);
  for (const MoeLayerTotals& layer : totals.moe_layers) {
    metrics.dropped_pairs += layer.dropped;
    metrics.remapped_pairs += layer.remapped;
    metrics.padding_rows += layer.padding_rows;
  }
  metrics.moe_layers = std::move(totals.moe_layers);
  metrics.phases = totals.phases;
  metrics.rank_tokens = std::move(totals.rank_tokens);
  metrics.expert_seconds = totals.expert_seconds;
  if (experts != nullptr) metrics.plan_epoch = experts->placement.plan_epoch;
  metrics.exchanges = totals.exchanges;
  // Every element is counted by one rank and the sum is the same everywhere, so
  // every rank takes the same decision and clips by the same number.
  CADRE_ASSIGN_OR_RETURN(metrics.grad_norm, GradientNorm());
  const double usable = std::isfinite(metrics.loss)
                            ? metrics.grad_norm
                            : std::numeric_limits<double>::quiet_NaN();
  if (metrics.targets > 0) {
    CADRE_ASSIGN_OR_RETURN(const bool updated,
                           optimizer_->Step(learning_rate, usable));
    metrics.skipped = !updated;
    if (updated) CADRE_RETURN_IF_ERROR(ShareValues());
  }
  metrics.optimizer_seconds = lap();
  return metrics;
}

absl::StatusOr<TrainStepRunner::Totals> TrainStepRunner::ForwardBackward(
    const TrainStep& data, int64_t step, int64_t global_targets) {
  Totals totals;
  for (int64_t experts : experts_per_layer_) {
    totals.expert_tokens.emplace_back(experts, 0);
  }
  totals.moe_layers.resize(experts_per_layer_.size());
  const ExpertParallel* const experts = model_->expert_parallel();
  if (experts != nullptr) {
    totals.rank_tokens.assign(experts_per_layer_.size(),
                              std::vector<int64_t>(experts->size(), 0));
  }
  const int64_t global_batches = options_.micro_batches * world_->size();
  const int64_t first =
      step * global_batches + world_->rank() * options_.micro_batches;
  CADRE_ASSIGN_OR_RETURN(
      const int64_t batches,
      AgreeOnBatches(static_cast<int64_t>(data.micro_batches.size())));
  for (int64_t i = 0; i < batches; ++i) {
    const Batch& batch = BatchOrEmpty(data.micro_batches, i);
    if (batch.num_tokens() == 0 && world_->size() == 1) continue;
    LossScale scale;
    scale.inv_num_targets =
        global_targets > 0 ? 1.0 / static_cast<double>(global_targets) : 0.0;
    scale.aux_weight = 1.0 / static_cast<double>(options_.micro_batches);
    // Numbered over the whole step, so that the masks do not depend on how the
    // step is spread over ranks.
    scale.dropout_step = static_cast<uint64_t>(first) + i;
    CADRE_ASSIGN_OR_RETURN(const ForwardResult result,
                           model_->ForwardBackward(batch, scale));
    totals.loss_sum += result.loss_sum;
    for (size_t phase = 0; phase < kNumPhases; ++phase) {
      totals.phases[phase] += result.phases[phase];
    }
    totals.backward_seconds += result.backward_seconds;
    Add(&totals.exchanges, result.traffic);
    totals.aux_sum += result.aux_loss;
    totals.z_sum += result.z_loss;
    for (size_t l = 0; l < totals.moe_layers.size(); ++l) {
      const MoeLayerCounts& layer = result.moe_counts[l];
      totals.moe_layers[l].dropped += layer.dropped;
      totals.moe_layers[l].padding_rows += layer.padding_rows;
      for (const int64_t moved : layer.remapped) {
        totals.moe_layers[l].remapped += moved;
      }
    }
    Add(totals.expert_tokens, result.expert_tokens);
    totals.expert_seconds += result.traffic.expert_seconds;
    const std::vector<int64_t>& computed = result.traffic.computed_pairs;
    for (size_t l = 0; l < totals.rank_tokens.size() && l < computed.size();
         ++l) {
      totals.rank_tokens[l][experts->rank] += computed[l];
    }
  }
  return totals;
}

absl::Status TrainStepRunner::ReduceTotals(Totals* totals) {
  std::array<double, 3> losses = {totals->loss_sum, totals->aux_sum,
                                  totals->z_sum};
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(losses)));
  totals->loss_sum = losses[0];
  totals->aux_sum = losses[1];
  totals->z_sum = losses[2];
  std::vector<int64_t> counts;
  for (const auto& layer : totals->expert_tokens) {
    counts.insert(counts.end(), layer.begin(), layer.end());
  }
  if (counts.empty()) return absl::OkStatus();
  for (const MoeLayerTotals& layer : totals->moe_layers) {
    counts.insert(counts.end(),
                  {layer.dropped, layer.remapped, layer.padding_rows});
  }
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(counts)));
  auto at = counts.begin();
  for (auto& layer : totals->expert_tokens) {
    std::copy_n(at, layer.size(), layer.begin());
    at += static_cast<int64_t>(layer.size());
  }
  for (MoeLayerTotals& layer : totals->moe_layers) {
    layer = {.dropped = at[0], .remapped = at[1], .padding_rows = at[2]};
    at += 3;
  }
  return ReduceRankTotals(totals);
}

absl::Status TrainStepRunner::ReduceRankTotals(Totals* totals) {
  if (totals->rank_tokens.empty()) return absl::OkStatus();
  std::vector<int64_t> counts;
  for (const auto& layer : totals->rank_tokens) {
    counts.insert(counts.end(), layer.begin(), layer.end());
  }
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(counts)));
  auto at = counts.begin();
  for (auto& layer : totals->rank_tokens) {
    std::copy_n(at, layer.size(), layer.begin());
    at += static_cast<int64_t>(layer.size());
  }
  auto nanoseconds = static_cast<int64_t>(1e9 * totals->expert_seconds);
  CADRE_RETURN_IF_ERROR(world_->AllReduceMax(absl::MakeSpan(&nanoseconds, 1)));
  totals->expert_seconds = 1e-9 * static_cast<double>(nanoseconds);
  return absl::OkStatus();
}

absl::StatusOr<EvalMetrics> TrainStepRunner::Evaluate(
    const std::vector<Batch>& batches) {
  double loss_sum = 0.0;
  int64_t targets = 0;
  CADRE_ASSIGN_OR_RETURN(const int64_t passes,
                         AgreeOnBatches(static_cast<int64_t>(batches.size())));
  for (int64_t i = 0; i < passes; ++i) {
    const Batch& batch = BatchOrEmpty(batches, i);
    CADRE_ASSIGN_OR_RETURN(const ForwardResult result,
                           model_->Forward(batch, {}));
    loss_sum += result.loss_sum;
    targets += batch.num_targets();
  }
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(&loss_sum, 1)));
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(&targets, 1)));
  EvalMetrics metrics;
  metrics.targets = targets;
  metrics.loss = targets > 0 ? loss_sum / static_cast<double>(targets) : 0.0;
  return metrics;
}

}  // namespace cadre
