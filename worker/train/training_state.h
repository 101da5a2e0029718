#ifndef CADRE_WORKER_TRAIN_TRAINING_STATE_H_
#define CADRE_WORKER_TRAIN_TRAINING_STATE_H_

// The state that training carries from step to step, to and from checkpoints.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "worker/comm/communicator.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/parameters.h"
#include "worker/moe/expert_parallel.h"
#include "worker/shard/optimizer.h"
#include "worker/train/trainer.h"

namespace cadre {

struct TrainingCounters {
  int64_t step = 0;  // steps done
  int64_t trained_tokens = 0, trained_targets = 0;
  int64_t nonfinite_total = 0, nonfinite_in_row = 0;
};

// Views of what a checkpoint is made of.
struct TrainingState {
  const TrainerOptions* options = nullptr;
  ParameterRegistry* parameters = nullptr;
  Optimizer* optimizer = nullptr;
  PackedDataset* data = nullptr;
  std::string base_fingerprint;
  const ExpertParallel* experts = nullptr;  // null: all are here
  Exec exec;  // where parameters and optimizer lie
};

// Digest of the options that all ranks must share.
std::string ConfigHash(const TrainerOptions& options);

// Writes this rank's files for counters.step.
absl::StatusOr<FilesSaved> SaveRank(const TrainingState& state,
                                    const TrainingCounters& counters,
                                    double loss);

// Gathers the files of all ranks on rank 0, which seals. Every rank calls it;
// returns the manifest's SHA-256 on rank 0, "" elsewhere.
absl::StatusOr<std::string> SealTogether(Communicator* world,
                                         const FilesSaved& saved);

// Reads options.checkpoint.resume_path into parameters, optimizer and data.
// DATA_LOSS for damage; FAILED_PRECONDITION where the checkpoint belongs to
// another model, adapter or batch, with both values.
absl::StatusOr<TrainingCounters> Resume(const TrainingState& state);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAINING_STATE_H_
