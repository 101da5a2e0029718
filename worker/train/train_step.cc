#include "worker/train/train_step.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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
                                 Communicator* world,
                                 const GradientGroups& groups, Clock* clock)
    : options_(options),
      model_(model),
      world_(world),
      clock_(clock),
      reducer_(&model->parameters(), groups) {
  for (const BlockSpec& block : model->spec().blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      experts_per_layer_.push_back(moe->num_experts);
    }
  }
}

absl::StatusOr<std::unique_ptr<TrainStepRunner>> TrainStepRunner::Create(
    const TrainStepOptions& options, Model* model, Communicator* world,
    const GradientGroups& groups, Clock* clock) {
  std::unique_ptr<TrainStepRunner> runner(
      new TrainStepRunner(options, model, world, groups, clock));
  CADRE_ASSIGN_OR_RETURN(
      runner->optimizer_,
      Optimizer::Create(options.exec, &model->parameters(), options.optimizer));
  return runner;
}

absl::StatusOr<StepMetrics> TrainStepRunner::Run(const TrainStep& data,
                                                 int64_t step,
                                                 double learning_rate) {
  Lap lap(clock_);
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

  ZeroGradients();
  CADRE_ASSIGN_OR_RETURN(Totals totals,
                         ForwardBackward(data, step, metrics.targets));
  metrics.compute_seconds = lap();

  CADRE_RETURN_IF_ERROR(reducer_.Reduce());
  CADRE_RETURN_IF_ERROR(ReduceTotals(&totals));
  metrics.reduce_seconds += lap();

  const double targets = static_cast<double>(metrics.targets);
  metrics.loss = metrics.targets > 0 ? totals.loss_sum / targets : 0.0;
  metrics.aux_loss =
      totals.aux_sum /
      static_cast<double>(options_.micro_batches * world_->size());
  metrics.expert_tokens = std::move(totals.expert_tokens);
  // Every rank holds the same sums, so every rank counts each gradient once and
  // takes the same decision.
  CADRE_ASSIGN_OR_RETURN(const double squares, optimizer_->GradientSquares());
  metrics.grad_norm = std::sqrt(squares);
  const double usable = std::isfinite(metrics.loss)
                            ? metrics.grad_norm
                            : std::numeric_limits<double>::quiet_NaN();
  if (metrics.targets > 0) {
    CADRE_ASSIGN_OR_RETURN(const bool updated,
                           optimizer_->Step(learning_rate, usable));
    metrics.skipped = !updated;
  }
  metrics.optimizer_seconds = lap();
  return metrics;
}

void TrainStepRunner::ZeroGradients() {
  for (Parameter* parameter : model_->parameters().Trainable()) {
    std::memset(parameter->grad.raw(), 0, parameter->grad.num_bytes());
  }
}

absl::StatusOr<TrainStepRunner::Totals> TrainStepRunner::ForwardBackward(
    const TrainStep& data, int64_t step, int64_t global_targets) {
  Totals totals;
  for (int64_t experts : experts_per_layer_) {
    totals.expert_tokens.emplace_back(experts, 0);
  }
  const int64_t global_batches = options_.micro_batches * world_->size();
  const int64_t first =
      step * global_batches + world_->rank() * options_.micro_batches;
  for (size_t i = 0; i < data.micro_batches.size(); ++i) {
    const Batch& batch = data.micro_batches[i];
    // A rank without rows still takes part in every collective of the step.
    if (batch.num_real_tokens() == 0) continue;
    LossScale scale;
    scale.inv_num_targets =
        global_targets > 0 ? 1.0 / static_cast<double>(global_targets) : 0.0;
    scale.aux_weight = 1.0 / static_cast<double>(global_batches);
    // Numbered over the whole step, so that the masks do not depend on how the
    // step is spread over ranks.
    scale.dropout_step = static_cast<uint64_t>(first) + i;
    CADRE_ASSIGN_OR_RETURN(const ForwardResult result,
                           model_->ForwardBackward(batch, scale));
    totals.loss_sum += result.loss_sum;
    totals.aux_sum += result.aux_loss;
    Add(totals.expert_tokens, result.expert_tokens);
  }
  return totals;
}

absl::Status TrainStepRunner::ReduceTotals(Totals* totals) {
  std::array<double, 2> losses = {totals->loss_sum, totals->aux_sum};
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(losses)));
  totals->loss_sum = losses[0];
  totals->aux_sum = losses[1];
  std::vector<int64_t> counts;
  for (const auto& layer : totals->expert_tokens) {
    counts.insert(counts.end(), layer.begin(), layer.end());
  }
  if (counts.empty()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(world_->AllReduceSum(absl::MakeSpan(counts)));
  auto at = counts.begin();
  for (auto& layer : totals->expert_tokens) {
    std::copy_n(at, layer.size(), layer.begin());
    at += static_cast<int64_t>(layer.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<EvalMetrics> TrainStepRunner::Evaluate(
    const std::vector<Batch>& batches) {
  double loss_sum = 0.0;
  int64_t targets = 0;
  for (const Batch& batch : batches) {
    if (batch.num_targets() == 0) continue;
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
