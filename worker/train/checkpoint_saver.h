#ifndef CADRE_WORKER_TRAIN_CHECKPOINT_SAVER_H_
#define CADRE_WORKER_TRAIN_CHECKPOINT_SAVER_H_

// When a rank saves, and a save together with its peers: files, agreement, and
// where the trainer seals (no coordinator does) the seal and the removal of old
// checkpoints. Does not own what it is given. Not thread-safe: the training
// thread.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer.h"
#include "worker/train/trainer_options.h"
#include "worker/train/training_state.h"

namespace cadre {

class CheckpointSaver {
 public:
  CheckpointSaver(const TrainerOptions& options, TrainObserver* observer,
                  Clock* clock)
      : options_(options), observer_(observer), clock_(clock) {}

  // There is a checkpoint of this step already.
  void SetSaved(int64_t step) { saved_step_ = step; }
  // The interval between saves counts from now.
  void StartClock() { saved_at_ = clock_->Monotonic(); }

  // By the clock, `step` steps done; ranks may differ.
  bool IsDue(int64_t step) const;
  // Unless there is one of this step. Every rank calls it.
  absl::Status Save(const TrainingState& state,
                    const TrainingCounters& counters, double loss,
                    Communicator* world);

 private:
  absl::Status ApplyRetention() const;

  const TrainerOptions& options_;
  TrainObserver* const observer_;
  Clock* const clock_;
  int64_t saved_step_ = -1;  // newest step with a checkpoint
  absl::Duration saved_at_;  // monotonic
};

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_CHECKPOINT_SAVER_H_
