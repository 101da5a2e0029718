#include "worker/train/checkpoint_saver.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"
#include "worker/train/step_agreement.h"

namespace cadre {

bool CheckpointSaver::IsDue(int64_t step) const {
  const TrainCheckpointOptions& checkpoint = options_.checkpoint;
  if (checkpoint.dir.empty() || saved_step_ == step) return false;
  return checkpoint.every > absl::ZeroDuration() &&
         clock_->Monotonic() - saved_at_ >= checkpoint.every;
}

absl::Status CheckpointSaver::Save(const TrainingState& state,
                                   const TrainingCounters& counters,
                                   double loss, Communicator* world) {
  if (options_.checkpoint.dir.empty() || saved_step_ == counters.step) {
    return absl::OkStatus();
  }
  observer_->OnPhase(TrainPhase::kSave);
  absl::StatusOr<FilesSaved> saved = SaveRank(state, counters, loss);
  if (!saved.ok()) {
    saved =
        Annotate(saved.status(),
                 absl::StrCat("saving a checkpoint at step ", counters.step));
  }
  CADRE_RETURN_IF_ERROR(
      AgreeOnStatus(world, "saving a checkpoint", saved.status()));
  saved_step_ = counters.step;
  StartClock();
  observer_->OnFilesSaved(*saved);
  if (options_.checkpoint.seal_by_trainer) {
    CADRE_ASSIGN_OR_RETURN(const std::string sha256,
                           SealTogether(world, *saved));
    if (options_.rank == 0) {
      observer_->OnSealed(saved->step, saved->dir, sha256);
      CADRE_RETURN_IF_ERROR(ApplyRetention());
    }
  }
  observer_->OnPhase(TrainPhase::kTrain);
  return absl::OkStatus();
}

absl::Status CheckpointSaver::ApplyRetention() const {
  const TrainCheckpointOptions& checkpoint = options_.checkpoint;
  CADRE_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored,
                         ListCheckpoints(checkpoint.dir));
  for (const StoredCheckpoint& old : CheckpointsToRemove(
           std::move(stored), checkpoint.keep_last, checkpoint.keep_every_steps,
           options_.attempt_epoch)) {
    CADRE_RETURN_IF_ERROR(RemoveCheckpoint(old.path));
  }
  return absl::OkStatus();
}

}  // namespace cadre
