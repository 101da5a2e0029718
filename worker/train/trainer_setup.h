#ifndef CADRE_WORKER_TRAIN_TRAINER_SETUP_H_
#define CADRE_WORKER_TRAIN_TRAINER_SETUP_H_

// What must hold before the first step: options that fit the ranks and the
// data, and ranks that were all given the same job. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/train/schedule.h"
#include "worker/train/trainer.h"
#include "worker/train/trainer_options.h"

namespace cadre {

// INVALID_ARGUMENT where the mesh is none or `world` is of other ranks, or
// where a global batch is not a whole number of micro-batches of every rank.
absl::Status CheckTrainerOptions(const TrainerOptions& options,
                                 const Communicator& world);

// From the first step to the last, schedule.total_steps.
absl::StatusOr<LearningRateSchedule> MakeSchedule(
    const TrainingOptions& training, const PackedDataset& data);

// FAILED_PRECONDITION where a rank has other options, data or weights. Every
// rank calls it.
absl::Status AgreeOnJob(const TrainerOptions& options,
                        const TrainerInputs& inputs, int64_t total_steps,
                        Communicator* world);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAINER_SETUP_H_
