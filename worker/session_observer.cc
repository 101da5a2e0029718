#include "worker/session_observer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/logging.h"
#include "plan/placement_proto.h"
#include "worker/expert_balance.h"

namespace cadre {

using cadre::v1::Event;
using cadre::v1::Report;

namespace {

// Half-life 20 steps.
const double kEmaWeight = 1.0 - std::pow(0.5, 1.0 / 20.0);
// The first steps are slower (memory is touched, caches are cold).
constexpr int64_t kStepsBeforeEstimate = 5;
// Memory that grows by less is told at the end only.
constexpr double kMemoryGrowth = 0.01;

double Ema(double old, double value, int64_t count) {
  // A plain mean at first, or the first step would weigh for ever.
  const double weight = std::max(
      kEmaWeight, 1.0 / static_cast<double>(std::max<int64_t>(count, 1)));
  return old + weight * (value - old);
}

// A step by part, see Progress.phase_seconds.
std::vector<std::pair<std::string, double>> PhasesOf(const StepMetrics& step) {
  std::vector<std::pair<std::string, double>> parts;
  for (size_t i = 0; i < kNumPhases; ++i) {
    parts.emplace_back(PhaseName(static_cast<Phase>(i)), step.phases[i]);
  }
  parts.emplace_back("reduce", step.reduce_seconds);
  parts.emplace_back("optimizer", step.optimizer_seconds);
  parts.emplace_back("data", step.data_seconds);
  parts.emplace_back("wait", step.wait_seconds);
  parts.emplace_back("exposed", step.exchanges.exposed_seconds);
  return parts;
}

// Part of `total` that falls to one rank when it is shared evenly; the parts
// add up to the total.
int64_t Share(int64_t total, int rank, int world_size) {
  return total * (rank + 1) / world_size - total * rank / world_size;
}

}  // namespace

SessionObserver::SessionObserver(Options options, SessionLink* link,
                                 CheckpointOrders* orders,
                                 WorkerMetrics* metrics, Clock* clock)
    : options_(std::move(options)),
      link_(link),
      orders_(orders),
      metrics_(metrics),
      clock_(clock),
      loads_(options_.loads_every, options_.moe_layers, link) {}

void SessionObserver::OnPreparing(absl::string_view stage, int64_t done,
                                  int64_t total) {
  Failpoint(absl::StrCat("worker.prepare_", stage));
  link_->SetPreparing(std::string(stage), done, total);
}

void SessionObserver::OnPhase(TrainPhase phase) {
  switch (phase) {
    case TrainPhase::kTrain:
      activity_ = Activity::kTrain;
      link_->SetPhase("train");
      break;
    case TrainPhase::kEval:
      activity_ = Activity::kTrain;
      link_->SetPhase("eval");
      Failpoint("worker.eval");
      break;
    case TrainPhase::kSave:
      activity_ = Activity::kSave;
      save_begin_ = clock_->Monotonic();
      link_->SetPhase("save");
      Failpoint("worker.save");
      break;
    case TrainPhase::kExport:
      activity_ = Activity::kExport;
      link_->SetPhase("export");
      Failpoint("worker.export");
      break;
  }
}

void SessionObserver::OnStep(const StepMetrics& step) {
  Failpoint("worker.step");
  ++steps_seen_;
  int64_t routed = 0;
  for (const auto& layer : step.expert_tokens) {
    for (const int64_t count : layer) routed += count;
  }
  const int rank = options_.rank, world = options_.world_size;
  const int64_t padding =
      std::max<int64_t>(0, options_.slots_per_step - step.tokens);
  metrics_->ObserveStep(
      step, {.rank_zero = rank == 0,
             .own_tokens = Share(step.tokens, rank, world),
             .own_targets = Share(step.targets, rank, world),
             .own_padding = Share(padding, rank, world),
             .own_routed = Share(routed, rank, world),
             .own_dropped = Share(step.dropped_pairs, rank, world),
             .own_remapped = Share(step.remapped_pairs, rank, world),
             .own_padding_rows = Share(step.padding_rows, rank, world),
             .own_flops = FlopsOf(step),
             .peak_flops = options_.peak_flops,
             .planned_bytes = options_.planned_bytes,
             .expected_bytes = ExpectedBytes(step.memory)});
  memory_ = step.memory;
  if (static_cast<double>(memory_.total()) >
      (1 + kMemoryGrowth) * static_cast<double>(told_memory_bytes_)) {
    ReportMemory();
  }
  if (rank == 0) {
    UpdateProgress(step);
    const bool last = step.step == step.total_steps;
    if (last || step.step % std::max<int64_t>(1, options_.log_every) == 0) {
      ReportScalars(step);
    }
    loads_.Add(step);
  }
  orders_->CarryOut();
}

void SessionObserver::UpdateProgress(const StepMetrics& step) {
  step_seconds_ema_ = Ema(step_seconds_ema_, step.step_seconds, steps_seen_);
  tokens_per_second_ema_ =
      Ema(tokens_per_second_ema_, step.tokens_per_second, steps_seen_);
  progress_.set_step(step.step);
  progress_.set_total_steps(step.total_steps);
  progress_.set_data_epoch(step.epoch);
  progress_.set_tokens(step.trained_tokens);
  progress_.set_tokens_per_second(tokens_per_second_ema_);
  progress_.set_loss(step.loss);
  if (steps_seen_ == 1 && !options_.resumed) {
    progress_.set_first_loss(step.loss);
  }
  if (step.total_steps > 0) {
    progress_.set_percent(100.0 * static_cast<double>(step.step) /
                          static_cast<double>(step.total_steps));
  }
  progress_.set_eta_seconds(static_cast<double>(step.total_steps - step.step) *
                            step_seconds_ema_);
  progress_.set_estimate_ready(steps_seen_ >= kStepsBeforeEstimate);
  progress_.set_grad_norm(step.grad_norm);
  progress_.set_learning_rate(step.learning_rate);
  if (!step.expert_tokens.empty()) {
    const double balance = MeasureBalance(step.expert_tokens).balancedness_step;
    if (std::isfinite(balance)) progress_.set_expert_balancedness(balance);
  }
  if (options_.peak_flops > 0 && step.step_seconds > 0) {
    progress_.set_model_flops_utilization(FlopsOf(step) / step.step_seconds /
                                          options_.peak_flops);
  }
  for (const auto& [name, seconds] : PhasesOf(step)) {
    (*progress_.mutable_phase_seconds())[name] = seconds;
  }
  if (!step.rank_tokens.empty()) {
    const double balance = MeasureBalance(step.rank_tokens).balancedness_step;
    if (std::isfinite(balance)) progress_.set_rank_balancedness(balance);
    progress_.set_plan_epoch(step.plan_epoch);
  }
  link_->SetProgress(progress_);
}

double SessionObserver::FlopsOf(const StepMetrics& step) const {
  return options_.flops_per_token * static_cast<double>(step.tokens) /
         options_.world_size;
}

void SessionObserver::ReportScalars(const StepMetrics& step) {
  Report report;
  auto& values = *report.mutable_scalars()->mutable_values();
  report.mutable_scalars()->set_step(step.step);
  values["loss"] = step.loss;
  values["grad_norm"] = step.grad_norm;
  values["learning_rate"] = step.learning_rate;
  values["tokens_per_second"] = step.tokens_per_second;
  values["step_seconds"] = step.step_seconds;
  values["data_seconds"] = step.data_seconds;
  values["forward_seconds"] = step.forward_seconds;
  values["backward_seconds"] = step.backward_seconds;
  values["reduce_seconds"] = step.reduce_seconds;
  values["optimizer_seconds"] = step.optimizer_seconds;
  values["wait_seconds"] = step.wait_seconds;
  for (size_t i = 0; i < kNumPhases; ++i) {
    values[absl::StrCat("phase_", PhaseName(static_cast<Phase>(i)),
                        "_seconds")] = step.phases[i];
  }
  values["all_to_all_seconds"] =
      step.exchanges.dispatch_seconds + step.exchanges.combine_seconds;
  values["all_to_all_exposed_seconds"] = step.exchanges.exposed_seconds;
  if (options_.peak_flops > 0 && step.step_seconds > 0) {
    values["mfu"] = FlopsOf(step) / step.step_seconds / options_.peak_flops;
  }
  for (const auto& [name, bytes] :
       {std::pair{"memory_weights_bytes", step.memory.weights},
        std::pair{"memory_gradients_bytes", step.memory.gradients},
        std::pair{"memory_optimizer_bytes", step.memory.optimizer},
        std::pair{"memory_gather_bytes", step.memory.gather},
        std::pair{"memory_reduce_bytes", step.memory.reduce},
        std::pair{"memory_activations_bytes", step.memory.activations},
        std::pair{"memory_total_bytes", step.memory.total()}}) {
    values[name] = static_cast<double>(bytes);
  }
  if (!step.expert_tokens.empty()) {
    const ExpertBalance balance = MeasureBalance(step.expert_tokens);
    values["aux_loss"] = step.aux_loss;
    values["z_loss"] = step.z_loss;
    values["dropped_pairs"] = static_cast<double>(step.dropped_pairs);
    values["remapped_pairs"] = static_cast<double>(step.remapped_pairs);
    values["padding_rows"] = static_cast<double>(step.padding_rows);
    values["expert_balancedness"] = balance.balancedness_step;
    values["expert_load_cv"] = balance.cv_mean;
    values["dead_experts"] = balance.dead_mean;
  }
  if (!step.rank_tokens.empty()) {
    values["rank_balancedness"] =
        MeasureBalance(step.rank_tokens).balancedness_step;
    values["expert_seconds"] = step.expert_seconds;
    values["plan_epoch"] = static_cast<double>(step.plan_epoch);
  }
  link_->AddReport(std::move(report));
}

int64_t SessionObserver::ExpectedBytes(const MemoryUse& memory) const {
  if (options_.planned_bytes == 0 || memory.expected_activations == 0) return 0;
  return options_.planned_fixed_bytes + memory.expected_activations;
}

void SessionObserver::ReportMemory() {
  const int64_t expected = ExpectedBytes(memory_);
  if (steps_seen_ == 0 || (memory_.total() == told_memory_bytes_ &&
                           expected == told_expected_bytes_)) {
    return;
  }
  told_memory_bytes_ = memory_.total();
  told_expected_bytes_ = expected;
  Report report;
  auto* peak = report.mutable_memory_peak();
  peak->set_rank(options_.rank);
  peak->set_weights(memory_.weights);
  peak->set_gradients(memory_.gradients);
  peak->set_optimizer(memory_.optimizer);
  peak->set_gather(memory_.gather);
  peak->set_reduce(memory_.reduce);
  peak->set_activations(memory_.activations);
  peak->set_peak_bytes(memory_.total());
  peak->set_planned_bytes(options_.planned_bytes);
  peak->set_expected_bytes(expected);
  link_->AddReport(std::move(report));
}

void SessionObserver::OnExpertsPlaced(
    const std::shared_ptr<const ExpertPlacement>& placement,
    bool from_checkpoint, const ExpertSize& size) {
  loads_.SetPlacement(placement);
  loads_.SetExpertSize(size);
  link_->SetPlacement(placement);
  metrics_->SetPlanEpoch(placement->plan_epoch);
  // The coordinator knows the placement that it gave.
  if (from_checkpoint) {
    ReportPlacement({.placement = placement}, /*with_layers=*/true);
  }
}

std::shared_ptr<const ExpertPlacement> SessionObserver::WantedPlacement() {
  return link_->WantedPlacement();
}

void SessionObserver::OnExpertsMoved(const ExpertsMoved& moved) {
  loads_.SetPlacement(moved.placement);
  link_->SetPlacement(moved.placement);
  metrics_->ObserveRebalance(moved.placement->plan_epoch, moved.seconds);
  CADRE_LOG(INFO) << "expert placement " << moved.placement->plan_epoch
                  << " is in force after step " << moved.step << ", moved in "
                  << moved.seconds << " s";
  ReportPlacement(moved, /*with_layers=*/false);
}

void SessionObserver::ReportPlacement(const ExpertsMoved& moved,
                                      bool with_layers) {
  if (options_.rank != 0) return;
  Report report;
  auto* placed = report.mutable_experts_placed();
  placed->set_plan_epoch(moved.placement->plan_epoch);
  placed->set_step(moved.step);
  placed->set_seconds(moved.seconds);
  placed->set_max_rank_bytes(moved.max_rank_bytes);
  if (with_layers) {
    *placed->mutable_placement() =
        ToProto(*moved.placement, link_->attempt_epoch());
  }
  link_->AddReport(std::move(report));
}

void SessionObserver::OnEval(const EvalMetrics& eval) {
  if (options_.rank != 0) return;
  metrics_->SetEvalLoss(eval.loss);
  progress_.set_eval_loss(eval.loss);
  link_->SetProgress(progress_);
  Report report;
  report.mutable_scalars()->set_step(eval.step);
  (*report.mutable_scalars()->mutable_values())["eval_loss"] = eval.loss;
  link_->AddReport(std::move(report));
  ReportEvent(Event::SEVERITY_INFO, "EVAL",
              absl::StrCat("loss ", eval.loss, " per target after step ",
                           eval.step, ", ", eval.targets, " targets"));
}

void SessionObserver::OnFilesSaved(const FilesSaved& saved) {
  Report report;
  auto* files = report.mutable_files_saved();
  files->set_step(saved.step);
  files->set_storage_path(saved.dir);
  files->set_loss(saved.loss);
  int64_t bytes = 0;
  for (const CheckpointFile& file : saved.files) {
    auto* entry = files->add_files();
    entry->set_path(file.path);
    entry->set_bytes(file.bytes);
    entry->set_sha256(file.sha256);
    bytes += file.bytes;
  }
  link_->AddReport(std::move(report));
  Failpoint("worker.saved");
  metrics_->ObserveSave(
      absl::ToDoubleSeconds(clock_->Monotonic() - save_begin_), bytes,
      clock_->Now());
  if (options_.rank == 0) orders_->AddSave(saved);
}

void SessionObserver::OnResumed(double seconds) {
  metrics_->ObserveLoad(seconds);
}

void SessionObserver::OnEvent(absl::string_view kind,
                              absl::string_view message) {
  CADRE_LOG(WARNING) << kind << ": " << message;
  // All ranks see the same; one tells.
  if (options_.rank == 0) {
    ReportEvent(Event::SEVERITY_WARN, std::string(kind), std::string(message));
  }
}

bool SessionObserver::StopRequested() {
  return link_->stop_mode() == cadre::v1::STOP_MODE_CHECKPOINT;
}

void SessionObserver::OnCollective(absl::string_view op, int64_t bytes,
                                   double seconds) {
  Failpoint("worker.collective");
  metrics_->ObserveCollective(op, bytes, seconds);
}

void SessionObserver::ReportEvent(Event::Severity severity,
                                  const std::string& type,
                                  const std::string& message) {
  Report report;
  report.mutable_event()->set_severity(severity);
  report.mutable_event()->set_type(type);
  report.mutable_event()->set_message(message);
  link_->AddReport(std::move(report));
}

}  // namespace cadre
