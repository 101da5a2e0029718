#include "worker/session.h"

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/logging.h"
#include "kernels/common/device_error.h"
#include "model/model_spec.h"
#include "plan/memory_budget.h"
#include "plan/path_roots.h"
#include "worker/checkpoint_orders.h"
#include "worker/data_files.h"
#include "worker/failure.h"
#include "worker/job_options.h"
#include "worker/model_flops.h"
#include "worker/rendezvous_client.h"
#include "worker/session_observer.h"

namespace cadre {
namespace {

using cadre::v1::Assignment;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using Wake = SessionLink::Wake;

// Nothing where the configuration cannot be read: then preparing fails anyway,
// with a better message.
std::optional<ModelSpec> ReadSpec(const TrainModelOptions& model) {
  const absl::StatusOr<std::string> text = ReadFile(
      model.random_init && !model.config.empty() ? model.config
                                                 : model.path + "/config.json");
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(*text);
  if (!spec.ok()) return std::nullopt;
  return *std::move(spec);
}

// Which layers of the model are MoE layers.
std::vector<int> MoeLayers(const ModelSpec& spec) {
  std::vector<int> layers;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    if (std::holds_alternative<MoeSpec>(spec.blocks[i].ffn)) {
      layers.push_back(static_cast<int>(i));
    }
  }
  return layers;
}

// What the plan says a rank needs, its runtime's own memory left out; 0 without
// a plan. `fixed`: without activations too.
int64_t PlannedBytes(const cadre::v1::Plan& plan, bool fixed) {
  int64_t bytes = 0;
  for (const cadre::v1::MemoryTerm& term : plan.memory()) {
    if (term.name() == kContextTerm) continue;
    if (fixed && (term.name() == kKeptTerm || term.name() == kLiveTerm)) {
      continue;
    }
    bytes += term.bytes();
  }
  return bytes;
}

// Takes the engine's hooks out of the link before the engine goes.
class AttachedEngine {
 public:
  AttachedEngine(SessionLink* link, Trainer* trainer) : link_(link) {
    link_->Attach(
        {.abort = [trainer] { trainer->Abort(); },
         .step = [trainer] { return trainer->step(); },
         .collective_seq = [trainer] { return trainer->collective_seq(); }});
  }
  ~AttachedEngine() { link_->Detach(); }
  AttachedEngine(const AttachedEngine&) = delete;
  AttachedEngine& operator=(const AttachedEngine&) = delete;

 private:
  SessionLink* const link_;
};

class Session {
 public:
  Session(const SessionOptions& options, const Assignment& assignment,
          SessionLink* link)
      : options_(options),
        assignment_(assignment),
        link_(link),
        orders_(link, options.metrics) {}

  EndedState Run() {
    absl::StatusOr<TrainerOptions> trainer_options =
        MakeTrainerOptions(assignment_);
    if (!trainer_options.ok()) {
      return Error(trainer_options.status(), Activity::kPrepare);
    }
    const absl::Status inside = cadre::CheckJobPaths(
        assignment_.spec(), {assignment_.allowed_roots().begin(),
                             assignment_.allowed_roots().end()});
    if (!inside.ok()) return Error(inside, Activity::kPrepare);
    const absl::Status data = CheckDataFiles(assignment_);
    if (!data.ok()) return Error(data, Activity::kPrepare);
    Failpoint("worker.planned");
    SessionObserver::Options watch;
    watch.rank = trainer_options->rank;
    watch.world_size = trainer_options->mesh.world_size;
    watch.log_every = trainer_options->training.log_every;
    if (assignment_.spec().moe().has_rebalance_every()) {
      watch.loads_every = assignment_.spec().moe().rebalance_every();
    }
    watch.slots_per_step = trainer_options->training.global_batch_size *
                           trainer_options->data.max_seq_len;
    watch.resumed = !trainer_options->checkpoint.resume_path.empty();
    watch.planned_bytes = PlannedBytes(assignment_.plan(), /*fixed=*/false);
    watch.planned_fixed_bytes = PlannedBytes(assignment_.plan(), true);
    watch.peak_flops = options_.backend->facts().peak_flops;
    if (const auto spec = ReadSpec(trainer_options->model)) {
      watch.moe_layers = MoeLayers(*spec);
      watch.flops_per_token =
          ModelFlopsPerToken(*spec, trainer_options->tuning);
    }
    trainer_options->nvtx = options_.nvtx;
    observer_.emplace(std::move(watch), link_, &orders_, options_.metrics,
                      options_.clock);

    RendezvousClient store(link_);
    absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        options_.backend->CreateTrainer(
            {.options = *std::move(trainer_options),
             .store = &store,
             .data_address = options_.data_address,
             .start_timeout = options_.timeouts.start_timeout,
             .rendezvous_timeout = options_.timeouts.rendezvous_timeout,
             .collective_timeout = options_.timeouts.collective_timeout,
             .observer = &*observer_,
             .collectives = &*observer_});
    if (!trainer.ok()) return Error(trainer.status(), Activity::kPrepare);
    trainer_ = *std::move(trainer);
    const AttachedEngine attached(link_, trainer_.get());
    EndedState ended = Drive();
    ended.set_step(trainer_->step());
    return ended;
  }

 private:
  EndedState Drive() {
    link_->SetReady();
    Failpoint("worker.ready");
    switch (Await(DesiredRun::TARGET_TRAIN, options_.timeouts.start_timeout)) {
      case Wake::kTarget:
        break;
      case Wake::kStopCheckpoint:
        return Stopped();
      case Wake::kDeadline:
        return Error(
            absl::DeadlineExceededError(absl::StrCat(
                "the order to train did not come within ",
                absl::FormatDuration(options_.timeouts.start_timeout))),
            Activity::kPrepare);
      default:
        return Aborted();
    }
    link_->SetPhase("train");
    const absl::StatusOr<TrainOutcome> outcome = trainer_->Train();
    observer_->FlushLoads();
    observer_->ReportMemory();
    if (!outcome.ok()) {
      return Error(outcome.status(), observer_->activity());
    }
    if (*outcome == TrainOutcome::kStopped) return Stopped();
    return Finish();
  }

  // All steps are done and this rank's part of the last save is reported.
  EndedState Finish() {
    // Exporting may take long or fail: the last steps must count before. A save
    // that does not become a checkpoint is no reason to keep the result back.
    if (orders_.awaits_seal() &&
        Await(std::nullopt, options_.timeouts.checkpoint_timeout) ==
            Wake::kStopNow) {
      return Aborted();
    }
    link_->SetStepsDone();
    Failpoint("worker.steps_done");
    switch (Await(DesiredRun::TARGET_EXPORT,
                  options_.timeouts.checkpoint_timeout)) {
      case Wake::kTarget:
        break;
      case Wake::kStopCheckpoint:
        return Stopped();
      case Wake::kDeadline:
        return Error(
            absl::DeadlineExceededError(absl::StrCat(
                "the order to export did not come within ",
                absl::FormatDuration(options_.timeouts.checkpoint_timeout))),
            Activity::kExport);
      default:
        return Aborted();
    }
    observer_->OnPhase(TrainPhase::kExport);
    const absl::StatusOr<ExportedArtifact> artifact = trainer_->Export();
    if (!artifact.ok()) return Error(artifact.status(), Activity::kExport);
    Failpoint("worker.exported");
    if (assignment_.rank() == 0 && !artifact->dir.empty()) {
      cadre::v1::Report report;
      auto* written = report.mutable_artifact();
      written->set_kind(artifact->kind);
      written->set_storage_path(artifact->dir);
      written->set_bytes(artifact->bytes);
      written->set_manifest_sha256(artifact->manifest_sha256);
      link_->AddReport(std::move(report));
    }
    EndedState ended;
    ended.set_result(EndedState::RESULT_DONE);
    return ended;
  }

  // Waits for the target and carries out seals meanwhile.
  Wake Await(std::optional<SessionLink::Target> target, absl::Duration limit) {
    for (;;) {
      const Wake wake = link_->Wait(target, limit);
      orders_.CarryOut();
      if (wake != Wake::kSeal) return wake;
      if (!target && !orders_.awaits_seal()) return Wake::kTarget;
    }
  }

  // Saved and told to stop. Rank 0 leaves only when the save counts: nobody
  // else could write its manifest.
  EndedState Stopped() {
    EndedState ended;
    ended.set_result(EndedState::RESULT_STOPPED);
    ended.set_evidence(link_->stop_reason());
    if (!orders_.awaits_seal()) return ended;
    switch (Await(std::nullopt, options_.timeouts.checkpoint_timeout)) {
      case Wake::kStopNow:
        return Aborted();
      case Wake::kDeadline:
        ended.set_evidence(absl::StrCat(
            link_->stop_reason(), "; the order to seal did not come within ",
            absl::FormatDuration(options_.timeouts.checkpoint_timeout)));
        break;
      default:
        break;
    }
    return ended;
  }

  EndedState Aborted() {
    if (trainer_ != nullptr) {
      trainer_->Abort();
      options_.metrics->CountAbort(WorkerMetrics::AbortCause::kStop);
    }
    EndedState ended;
    ended.set_result(EndedState::RESULT_ABORTED);
    ended.set_evidence(link_->stop_reason());
    return ended;
  }

  EndedState Error(const absl::Status& status, Activity activity) {
    // An error after the order to stop is that order's effect.
    if (link_->stop_mode() == cadre::v1::STOP_MODE_NOW) return Aborted();
    const absl::Status error = BlameDevice(NamePeer(status, assignment_));
    EndedState ended = EndedByError(error, activity);
    CountDeviceError(error, ended);
    CADRE_LOG(ERROR) << assignment_.job() << " rank " << assignment_.rank()
                     << (ended.secondary() ? ": a peer failed " : ": ")
                     << ended.evidence();
    if (activity == Activity::kSave) options_.metrics->CountFailedSave();
    if (trainer_ != nullptr) {
      // The peers must not wait for this rank until their deadline.
      trainer_->Abort();
      options_.metrics->CountAbort(WorkerMetrics::AbortCause::kPeer);
    }
    return ended;
  }

  // A device that failed for good answers everything with its error. So where
  // an op or a collective only says that something broke, it is asked.
  absl::Status BlameDevice(const absl::Status& status) const {
    switch (status.code()) {
      case absl::StatusCode::kInternal:
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kDeadlineExceeded:
      case absl::StatusCode::kAborted:
        break;
      default:
        return status;
    }
    if (DeviceErrorOf(status)) return status;
    const absl::Status device = options_.backend->Memory().status();
    const std::optional<DeviceErrorKind> kind = DeviceErrorOf(device);
    if (!kind) return status;
    return WithDeviceError(
        absl::InternalError(absl::StrCat(
            status.message(), "; the device answers: ", device.message())),
        *kind);
  }

  void CountDeviceError(const absl::Status& status, const EndedState& ended) {
    if (const auto kind = DeviceErrorOf(status)) {
      options_.metrics->CountDeviceError(*kind);
    } else if (ended.cause() == cadre::v1::FAILURE_CAUSE_OUT_OF_MEMORY) {
      options_.metrics->CountDeviceError(DeviceErrorKind::kOutOfMemory);
    }
  }

  const SessionOptions& options_;
  const Assignment& assignment_;
  SessionLink* const link_;
  CheckpointOrders orders_;
  std::optional<SessionObserver> observer_;
  std::unique_ptr<Trainer> trainer_;
};

EndedState RunCatching(const SessionOptions& options,
                       const Assignment& assignment, SessionLink* link) {
  // The engine throws nothing of its own, but memory can run out anywhere.
  try {
    return Session(options, assignment, link).Run();
  } catch (const std::bad_alloc&) {
    options.metrics->CountDeviceError(DeviceErrorKind::kOutOfMemory);
    return EndedByError(
        absl::ResourceExhaustedError(
            "memory ran out; use more workers, a smaller data.max_seq_len or "
            "training.micro_batch_size"),
        Activity::kTrain);
  } catch (const std::exception& error) {
    return EndedByError(absl::InternalError(error.what()), Activity::kTrain);
  }
}

}  // namespace

void RunSession(const SessionOptions& options, const Assignment& assignment,
                SessionLink* link) {
  const std::string id(absl::StripPrefix(assignment.job(), "jobs/"));
  options.metrics->JobEntered(id, assignment.attempt_epoch(),
                              assignment.rank());
  EndedState ended = RunCatching(options, assignment, link);
  // By now the engine and all its memory are gone.
  options.metrics->JobLeft();
  CADRE_LOG(INFO) << assignment.job() << " attempt "
                  << assignment.attempt_epoch() << " rank " << assignment.rank()
                  << " ended: " << EndedState::Result_Name(ended.result())
                  << " at step " << ended.step();
  link->SetEnded(ended);
}

}  // namespace cadre
