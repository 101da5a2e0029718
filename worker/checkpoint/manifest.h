#ifndef CADRE_WORKER_CHECKPOINT_MANIFEST_H_
#define CADRE_WORKER_CHECKPOINT_MANIFEST_H_

// manifest.json of a training checkpoint: the file whose presence makes a
// folder a checkpoint (docs/checkpoint_format.md). Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plan/expert_placement.h"
#include "plan/mesh.h"

namespace cadre {

struct CheckpointFile {
  std::string path;  // relative to the folder
  int64_t bytes = 0;
  std::string sha256;  // 64 lower-case hex digits
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  // 1: whole tensors only; read, too.
  static constexpr int kFormatVersion = 2;
  static constexpr char kFileName[] = "manifest.json";

  std::string job;
  int64_t attempt_epoch = 0;
  int64_t step = 0;
  std::string method;            // "lora" or "full"
  std::string base_fingerprint;  // of the base model
  std::string config_hash;       // of what must not change between attempts
  MeshSpec mesh;
  // Where the experts lay; unset without expert parallelism. A hint: what is
  // stored goes by logical expert, so any placement can resume.
  std::optional<ExpertPlacement> placement;
  std::vector<CheckpointFile> files;  // by path

  std::string ToJson() const;  // deterministic
  // DATA_LOSS naming the missing or malformed field.
  static absl::StatusOr<CheckpointManifest> Parse(absl::string_view json);
};

// "step-00001200.attempt-7"; the digits grow where they must.
std::string CheckpointDirName(int64_t step, int64_t attempt_epoch);

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_MANIFEST_H_
