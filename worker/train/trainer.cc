#include "worker/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "plan/mesh.h"
#include "worker/comm/counting_communicator.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/parameter_gather.h"
#include "worker/train/checkpoint_saver.h"
#include "worker/train/export.h"
#include "worker/train/replace_experts.h"
#include "worker/train/schedule.h"
#include "worker/train/step_agreement.h"
#include "worker/train/train_step.h"
#include "worker/train/trainer_setup.h"
#include "worker/train/training_state.h"

namespace cadre {

TrainerInputs::TrainerInputs() = default;
TrainerInputs::TrainerInputs(TrainerInputs&&) noexcept = default;
TrainerInputs& TrainerInputs::operator=(TrainerInputs&&) noexcept = default;
TrainerInputs::~TrainerInputs() = default;

namespace {

// A GPU's steps are logged with their phases at first, then now and then.
constexpr int64_t kLoggedSteps = 10, kLogEverySteps = 50;

void LogPhases(const StepMetrics& metrics, const ArenaStats& arenas) {
  std::string phases;
  for (size_t i = 0; i < kNumPhases; ++i) {
    absl::StrAppendFormat(&phases, ", %s %.1f",
                          PhaseName(static_cast<Phase>(i)),
                          1e3 * metrics.phases[i]);
  }
  CADRE_LOG(INFO) << absl::StrFormat(
      "step %d: loss %.5f, norm %.5f, %.1f ms (forward %.1f, backward %.1f, "
      "reduce %.1f, "
      "optimizer %.1f, data %.1f), %.0f tokens/s; ms of phases%s; activations "
      "%.2f GB in %d allocations",
      metrics.step, metrics.loss, metrics.grad_norm, 1e3 * metrics.step_seconds,
      1e3 * metrics.forward_seconds, 1e3 * metrics.backward_seconds,
      1e3 * metrics.reduce_seconds, 1e3 * metrics.optimizer_seconds,
      1e3 * metrics.data_seconds, metrics.tokens_per_second, phases.substr(1),
      1e-9 * static_cast<double>(arenas.reserved_bytes), arenas.allocations);
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(TrainerOptions options, TrainerInputs inputs,
              std::unique_ptr<Communicator> world, TrainObserver* observer,
              Clock* clock)
      : options_(std::move(options)),
        inputs_(std::move(inputs)),
        observer_(observer),
        clock_(clock),
        unsplit_(CountCollectives(std::move(world), &collective_seq_)),
        saver_(options_, observer_, clock_) {}
  ~TrainerImpl() override {
    // After an error a gather may be under way that no peer joins any more.
    if (failed_) Abort();
  }

  absl::Status Init();

  absl::StatusOr<TrainOutcome> Train() override {
    absl::StatusOr<TrainOutcome> outcome = RunSteps();
    // Too many non-finite steps is what all ranks find alike: a peer may still
    // be at the collective that told it.
    failed_ = !outcome.ok() && !absl::IsOutOfRange(outcome.status());
    return outcome;
  }
  absl::StatusOr<ExportedArtifact> Export() override;
  void Abort() override { communicators_->Abort(); }
  int64_t step() const override { return published_step_; }
  int64_t total_steps() const override { return total_steps_; }
  int64_t collective_seq() const override { return collective_seq_; }

 private:
  absl::StatusOr<TrainOutcome> RunSteps();
  absl::Status Step(double wait_seconds);
  // What this rank would change to now: a newer placement than that in force.
  std::shared_ptr<const ExpertPlacement> NextPlacement();
  absl::Status MoveExpertsTo(
      const std::shared_ptr<const ExpertPlacement>& next);
  int64_t plan_epoch() const {
    const ExpertParallel* const experts = inputs_.model->expert_parallel();
    return experts == nullptr ? 0 : experts->placement.plan_epoch;
  }
  absl::Status CountNonfinite(const StepMetrics& metrics);
  absl::Status Evaluate();
  absl::Status Save() {
    return saver_.Save(State(), counters_, last_loss_, world_);
  }
  TrainingState State() {
    return {.options = &options_,
            .parameters = &inputs_.model->parameters(),
            .optimizer = &runner_->optimizer(),
            .data = inputs_.train.get(),
            .base_fingerprint = inputs_.base_fingerprint,
            .experts = inputs_.model->expert_parallel(),
            .exec = inputs_.exec};
  }

  const TrainerOptions options_;
  TrainerInputs inputs_;
  TrainObserver* const observer_;
  Clock* const clock_;
  std::atomic<int64_t> collective_seq_{0};
  std::unique_ptr<Communicator> unsplit_;  // until communicators_ has it
  std::unique_ptr<MeshCommunicators> communicators_;
  Communicator* world_ = nullptr;
  bool failed_ = false;
  LearningRateSchedule schedule_;
  std::unique_ptr<TrainStepRunner> runner_;
  CheckpointSaver saver_;
  std::vector<Batch> eval_batches_;

  int64_t total_steps_ = 0;
  TrainingCounters counters_;
  std::atomic<int64_t> published_step_{0};
  int64_t evaluated_step_ = -1;
  double last_loss_ = 0.0;
};

absl::Status TrainerImpl::Init() {
  CADRE_RETURN_IF_ERROR(CheckTrainerOptions(options_, *unsplit_));
  CADRE_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(options_.mesh));
  CADRE_ASSIGN_OR_RETURN(communicators_,
                         MeshCommunicators::Create(mesh, std::move(unsplit_)));
  world_ = communicators_->world();
  const TrainingOptions& training = options_.training;
  CADRE_ASSIGN_OR_RETURN(schedule_, MakeSchedule(training, *inputs_.train));
  total_steps_ = schedule_.total_steps;
  CADRE_RETURN_IF_ERROR(AgreeOnJob(options_, inputs_, total_steps_, world_));

  CADRE_ASSIGN_OR_RETURN(
      runner_, TrainStepRunner::Create(
                   {.exec = inputs_.exec,
                    .optimizer = {.beta1 = training.beta1,
                                  .beta2 = training.beta2,
                                  .epsilon = training.epsilon,
                                  .weight_decay = training.weight_decay,
                                  .max_grad_norm = training.max_grad_norm},
                    .micro_batches =
                        training.global_batch_size /
                        (training.micro_batch_size * options_.mesh.world_size),
                    .link_domains = options_.link_domains},
                   inputs_.model.get(), communicators_.get(), clock_));
  if (inputs_.eval != nullptr) eval_batches_ = inputs_.eval->EvalBatches();

  if (!options_.checkpoint.resume_path.empty()) {
    const absl::Duration begin = clock_->Monotonic();
    absl::StatusOr<TrainingCounters> resumed = Resume(State());
    CADRE_RETURN_IF_ERROR(AgreeOnStatus(world_, "resuming", resumed.status()));
    CADRE_RETURN_IF_ERROR(runner_->SpreadValues());
    observer_->OnResumed(absl::ToDoubleSeconds(clock_->Monotonic() - begin));
    counters_ = *resumed;
    // At step 0 only the weights were taken: this job has saved nothing yet.
    if (counters_.step > 0) saver_.SetSaved(counters_.step);
    if (counters_.step > total_steps_) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint ", options_.checkpoint.resume_path,
                       " is at step ", counters_.step, ", the job has ",
                       total_steps_, " steps; raise training.max_steps"));
    }
  }
  published_step_ = counters_.step;
  return absl::OkStatus();
}

absl::StatusOr<TrainOutcome> TrainerImpl::RunSteps() {
  observer_->OnPhase(TrainPhase::kTrain);
  saver_.StartClock();
  const TrainCheckpointOptions& checkpoint = options_.checkpoint;
  if (const ExpertParallel* experts = inputs_.model->expert_parallel()) {
    observer_->OnExpertsPlaced(
        std::make_shared<ExpertPlacement>(experts->placement),
        options_.moe.placement == nullptr && plan_epoch() > 0,
        SizeOfExpert(*inputs_.model, runner_->optimizer()));
  }
  while (counters_.step < total_steps_) {
    // Clocks and orders differ between ranks; one rank's wish moves them all.
    const std::shared_ptr<const ExpertPlacement> next = NextPlacement();
    const StepWishes mine = {
        .stop = observer_->StopRequested(),
        .save = observer_->SaveRequested() || saver_.IsDue(counters_.step),
        .plan_epoch = plan_epoch(),
        .next_plan_epoch = next == nullptr ? plan_epoch() : next->plan_epoch};
    const absl::Duration begin = clock_->Monotonic();
    CADRE_ASSIGN_OR_RETURN(
        const StepWishes agreed,
        AgreeOnStep(world_, options_.attempt_epoch, counters_.step, mine));
    // How long the slowest rank was waited for.
    const double wait_seconds =
        absl::ToDoubleSeconds(clock_->Monotonic() - begin);
    if (agreed.stop || agreed.save) CADRE_RETURN_IF_ERROR(Save());
    if (agreed.stop) return TrainOutcome::kStopped;
    // All hold a newer one. The next is ordered only when it is in force.
    if (next != nullptr && agreed.next_plan_epoch == next->plan_epoch) {
      CADRE_RETURN_IF_ERROR(MoveExpertsTo(next));
    } else if (agreed.next_plan_epoch > plan_epoch()) {
      return absl::InternalError(absl::StrCat(
          "step ", counters_.step, ": all ranks hold expert placement ",
          agreed.next_plan_epoch, " or a newer one, this one only ",
          next == nullptr ? plan_epoch() : next->plan_epoch,
          ": two placements were ordered at once"));
    }
    CADRE_RETURN_IF_ERROR(Step(wait_seconds));
    const int64_t step = counters_.step;
    if (options_.training.eval_every > 0 &&
        step % options_.training.eval_every == 0) {
      CADRE_RETURN_IF_ERROR(Evaluate());
    }
    if (checkpoint.every_steps > 0 && step % checkpoint.every_steps == 0) {
      CADRE_RETURN_IF_ERROR(Save());
    }
  }
  CADRE_RETURN_IF_ERROR(Evaluate());
  CADRE_RETURN_IF_ERROR(Save());
  return TrainOutcome::kFinished;
}

std::shared_ptr<const ExpertPlacement> TrainerImpl::NextPlacement() {
  std::shared_ptr<const ExpertPlacement> wanted = observer_->WantedPlacement();
  if (wanted == nullptr || wanted->plan_epoch <= plan_epoch()) return nullptr;
  return wanted;
}

absl::Status TrainerImpl::MoveExpertsTo(
    const std::shared_ptr<const ExpertPlacement>& next) {
  const absl::Duration begin = clock_->Monotonic();
  CADRE_ASSIGN_OR_RETURN(
      const int64_t bytes,
      ReplaceExperts(inputs_.exec, inputs_.model.get(), &runner_->optimizer(),
                     *communicators_, *next));
  observer_->OnExpertsMoved(
      {.step = counters_.step,
       .placement = next,
       .seconds = absl::ToDoubleSeconds(clock_->Monotonic() - begin),
       .max_rank_bytes = bytes});
  return absl::OkStatus();
}

absl::Status TrainerImpl::Step(double wait_seconds) {
  const absl::Duration begin = clock_->Monotonic();
  const TrainStep data = inputs_.train->Next();
  const double data_seconds =
      absl::ToDoubleSeconds(clock_->Monotonic() - begin);
  CADRE_ASSIGN_OR_RETURN(
      StepMetrics metrics,
      runner_->Run(data, counters_.step, schedule_.At(counters_.step)));
  if (metrics.targets != data.global_targets) {
    return absl::InternalError(absl::StrCat(
        "the ranks hold ", metrics.targets, " targets of step ",
        counters_.step + 1, ", the data has ", data.global_targets));
  }
  ++counters_.step;
  counters_.trained_tokens += metrics.tokens;
  counters_.trained_targets += metrics.targets;
  const absl::Status usable = CountNonfinite(metrics);
  last_loss_ = metrics.loss;

  metrics.step = counters_.step;
  metrics.total_steps = total_steps_;
  metrics.epoch = static_cast<double>(counters_.step *
                                      options_.training.global_batch_size) /
                  static_cast<double>(
                      std::max<int64_t>(1, inputs_.train->rows_per_epoch()));
  metrics.trained_tokens = counters_.trained_tokens;
  metrics.nonfinite_total = counters_.nonfinite_total;
  metrics.memory = runner_->memory();
  metrics.data_seconds = data_seconds;
  metrics.wait_seconds = wait_seconds;
  metrics.step_seconds =
      absl::ToDoubleSeconds(clock_->Monotonic() - begin) + wait_seconds;
  metrics.tokens_per_second =
      metrics.step_seconds > 0
          ? static_cast<double>(metrics.tokens) / metrics.step_seconds
          : 0.0;
  published_step_ = counters_.step;
  if (inputs_.exec.backend == Backend::kCuda &&
      (metrics.step <= kLoggedSteps || metrics.step % kLogEverySteps == 0)) {
    LogPhases(metrics, inputs_.model->arena_stats());
  }
  observer_->OnStep(metrics);
  return usable;
}

absl::Status TrainerImpl::CountNonfinite(const StepMetrics& metrics) {
  if (!metrics.skipped) {
    counters_.nonfinite_in_row = 0;
    return absl::OkStatus();
  }
  ++counters_.nonfinite_total;
  ++counters_.nonfinite_in_row;
  const std::string what =
      absl::StrCat("step ", counters_.step, ": loss ", metrics.loss,
                   ", gradient norm ", metrics.grad_norm);
  observer_->OnEvent("NONFINITE_STEP",
                     absl::StrCat(what, "; nothing was updated"));
  if (counters_.nonfinite_in_row <= options_.training.max_nonfinite_steps) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      what, "; ", counters_.nonfinite_in_row,
      " steps in a row were not finite, training.max_nonfinite_steps is ",
      options_.training.max_nonfinite_steps,
      "; lower training.learning_rate or check the data"));
}

absl::Status TrainerImpl::Evaluate() {
  if (eval_batches_.empty() || evaluated_step_ == counters_.step) {
    return absl::OkStatus();
  }
  observer_->OnPhase(TrainPhase::kEval);
  CADRE_ASSIGN_OR_RETURN(EvalMetrics metrics, runner_->Evaluate(eval_batches_));
  metrics.step = counters_.step;
  evaluated_step_ = counters_.step;
  observer_->OnEval(metrics);
  observer_->OnPhase(TrainPhase::kTrain);
  return absl::OkStatus();
}

absl::StatusOr<ExportedArtifact> TrainerImpl::Export() {
  if (options_.output.dir.empty()) return ExportedArtifact();
  observer_->OnPhase(TrainPhase::kExport);
  ParameterRegistry& parameters = inputs_.model->parameters();
  ParameterGather gather(inputs_.exec, &parameters, &inputs_.model->units(),
                         communicators_.get(), &runner_->optimizer());
  absl::StatusOr<ExportedArtifact> artifact = ExportedArtifact();
  if (options_.rank == 0) {
    artifact = ExportResult(options_, inputs_,
                            {.parameters = &parameters, .gather = &gather},
                            counters_.step);
    CADRE_RETURN_IF_ERROR(gather.Finish());
  } else {
    CADRE_RETURN_IF_ERROR(gather.Serve());
  }
  CADRE_RETURN_IF_ERROR(
      AgreeOnStatus(world_, "exporting the result", artifact.status()));
  return artifact;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    TrainerOptions options, TrainerInputs inputs,
    std::unique_ptr<Communicator> world, TrainObserver* observer,
    Clock* clock) {
  auto trainer = std::make_unique<TrainerImpl>(
      std::move(options), std::move(inputs), std::move(world), observer,
      clock == nullptr ? Clock::Real() : clock);
  CADRE_RETURN_IF_ERROR(trainer->Init());
  return trainer;
}

}  // namespace cadre
