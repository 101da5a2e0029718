#include "worker/train/trainer_setup.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/mesh.h"
#include "worker/data/packed_dataset.h"
#include "worker/train/step_agreement.h"
#include "worker/train/training_state.h"

namespace cadre {
namespace {

absl::Status CheckMesh(const TrainerOptions& options,
                       const Communicator& world) {
  CADRE_RETURN_IF_ERROR(Mesh::Create(options.mesh).status());
  if (world.size() != options.mesh.world_size || world.rank() != options.rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("the options are of rank ", options.rank, " of ",
                     options.mesh.world_size, ", the communicator is rank ",
                     world.rank(), " of ", world.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(const TrainerOptions& options) {
  const TrainingOptions& training = options.training;
  const int64_t rows = options.mesh.world_size * training.micro_batch_size;
  if (training.micro_batch_size < 1 || training.global_batch_size < 1 ||
      training.global_batch_size % rows != 0) {
    const int64_t below = training.global_batch_size /
                          std::max<int64_t>(rows, 1) *
                          std::max<int64_t>(rows, 1);
    return absl::InvalidArgumentError(absl::StrCat(
        "training.global_batch_size is ", training.global_batch_size,
        "; it must be a positive multiple of ", options.mesh.world_size,
        " workers x training.micro_batch_size ", training.micro_batch_size,
        ", nearest: ", std::max(below, rows), " or ", below + rows));
  }
  return absl::OkStatus();
}

// The first 63 bits of a hex digest, to compare digests by one number.
int64_t ShortDigest(const std::string& hex) {
  return static_cast<int64_t>(
      std::strtoull(hex.substr(0, 16).c_str(), nullptr, 16) >> 1);
}

}  // namespace

absl::Status CheckTrainerOptions(const TrainerOptions& options,
                                 const Communicator& world) {
  CADRE_RETURN_IF_ERROR(CheckMesh(options, world));
  return CheckBatch(options);
}

absl::StatusOr<LearningRateSchedule> MakeSchedule(
    const TrainingOptions& training, const PackedDataset& data) {
  const int64_t total_steps = training.max_steps > 0
                                  ? training.max_steps
                                  : data.StepsForEpochs(training.epochs);
  if (total_steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.epochs ", training.epochs, " of ",
                     data.rows_per_epoch(), " rows is no step"));
  }
  const LearningRateSchedule schedule{.kind = training.schedule,
                                      .peak = training.learning_rate,
                                      .warmup_ratio = training.warmup_ratio,
                                      .min_lr_ratio = training.min_lr_ratio,
                                      .total_steps = total_steps};
  CADRE_RETURN_IF_ERROR(schedule.Validate());
  return schedule;
}

absl::Status AgreeOnJob(const TrainerOptions& options,
                        const TrainerInputs& inputs, int64_t total_steps,
                        Communicator* world) {
  CADRE_RETURN_IF_ERROR(AgreeOnValue(world, "the job's options",
                                     ShortDigest(ConfigHash(options))));
  CADRE_RETURN_IF_ERROR(
      AgreeOnValue(world, "the number of steps", total_steps));
  CADRE_RETURN_IF_ERROR(AgreeOnValue(world, "the rows of the data",
                                     inputs.train->rows_per_epoch()));
  CADRE_RETURN_IF_ERROR(AgreeOnValue(world, "the tokens of the data",
                                     inputs.train->num_tokens()));
  return AgreeOnValue(
      world, "the base model",
      static_cast<int64_t>(std::hash<std::string>()(inputs.base_fingerprint)));
}

}  // namespace cadre
