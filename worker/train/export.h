#ifndef CADRE_WORKER_TRAIN_EXPORT_H_
#define CADRE_WORKER_TRAIN_EXPORT_H_

// The result of a job on disk: a PEFT adapter, or a full checkpoint. Written
// beside the target, read back and compared, then renamed into place, so that
// the output folder is whole or absent.

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/model/parameters.h"
#include "worker/shard/parameter_gather.h"
#include "worker/train/trainer.h"

namespace cadre {

// Beside the result: what it was made from and the SHA-256 of every file.
inline constexpr char kResultManifest[] = "cadre_manifest.json";

// Where the values come from: any layout of any mesh.
struct ExportSource {
  ParameterRegistry* parameters = nullptr;
  ParameterGather* gather = nullptr;
};

// Rank 0 calls it while the others serve its gather. An output folder with an
// older result of the same job is replaced; ALREADY_EXISTS for any other folder
// that is not empty. DATA_LOSS when what was written does not read back.
absl::StatusOr<ExportedArtifact> ExportResult(const TrainerOptions& options,
                                              const TrainerInputs& inputs,
                                              const ExportSource& source,
                                              int64_t step);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_EXPORT_H_
