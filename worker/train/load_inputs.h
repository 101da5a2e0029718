#ifndef CADRE_WORKER_TRAIN_LOAD_INPUTS_H_
#define CADRE_WORKER_TRAIN_LOAD_INPUTS_H_

// From the paths of a job to a model and data in memory: tokenizer, encoded and
// packed data, base weights, adapter. Needs no peers.

#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "worker/train/trainer.h"

namespace cadre {

// Errors name the file. `observer` hears the stages "data" and "model".
absl::StatusOr<TrainerInputs> LoadTrainerInputs(const TrainerOptions& options,
                                                const Exec& exec,
                                                TrainObserver* observer);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_LOAD_INPUTS_H_
