#ifndef CADRE_WORKER_CHECKPOINT_CHECKPOINT_H_
#define CADRE_WORKER_CHECKPOINT_CHECKPOINT_H_

// Training checkpoints, in four verbs: every rank writes its files
// (WriteRankFiles), whoever leads the attempt decides that they are complete
// and has rank 0 write the manifest last (SealCheckpoint), a reader verifies
// (VerifyCheckpoint) and loads (CheckpointReader). A folder without
// manifest.json is garbage. Free functions; one writer per rank and folder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/common/tensor.h"
#include "worker/checkpoint/manifest.h"

namespace cadre {

// A stretch of a tensor under its logical name (models.md 1.2): never a rank or
// a slot. Offsets are those of the whole logical tensor, so that what one mesh
// wrote another can read.
struct TensorPiece {
  std::string name;
  std::vector<int64_t> global_shape;
  int64_t begin = 0;  // first element in the whole tensor, flat
  Tensor value;       // host, f32; its elements in order
};

// Counters and cursors of one rank that exact resume needs.
struct RankState {
  int rank = 0;
  int64_t step = 0;
  std::string data_cursor;     // DataCursor::Serialize
  uint64_t seed = 0;           // all randomness derives from seed and step
  int64_t trained_tokens = 0;  // over all ranks
  int64_t trained_targets = 0;
  int64_t nonfinite_total = 0;
  int64_t nonfinite_in_row = 0;
  int64_t optimizer_updates = 0;  // AdamW's t
  int64_t global_batch_size = 0;  // the cursor is in rows of it

  std::string ToJson() const;
  static absl::StatusOr<RankState> Parse(absl::string_view json);
};

// What one rank puts into a checkpoint. What several ranks hold is written
// once, by its owner; a rank that owns nothing passes empty spans.
struct RankFiles {
  RankState state;
  absl::Span<const TensorPiece> weights;    // adapter or trained weights
  absl::Span<const TensorPiece> optimizer;  // "<name>.m", "<name>.v"
  std::string weights_stem = "adapter";     // or "weights"
};

// Writes <stem>-RRRRR.safetensors, optimizer-RRRRR.safetensors and
// rank-state-RRRRR.json into `dir` (made if absent), each under a temporary
// name, fsynced, renamed; then fsyncs the folder. Returns what was written.
absl::StatusOr<std::vector<CheckpointFile>> WriteRankFiles(
    const std::string& dir, const RankFiles& files);

struct SealedCheckpoint {
  std::string manifest_sha256;
  int64_t bytes = 0;  // of all files and the manifest
};

// Checks that every file of the manifest is there with its size and that the
// pieces of every tensor cover it exactly, then writes manifest.json
// atomically. FAILED_PRECONDITION when a file is missing or differs, or an
// element is missing or there twice; sealing twice with the same content is OK.
absl::StatusOr<SealedCheckpoint> SealCheckpoint(
    const std::string& dir, const CheckpointManifest& manifest);

// Reads the manifest and compares every file's size and SHA-256. DATA_LOSS
// names the file; NOT_FOUND: there is no manifest, so no checkpoint.
// `manifest_sha256` may be empty.
absl::StatusOr<CheckpointManifest> VerifyCheckpoint(
    const std::string& dir, absl::string_view manifest_sha256 = "");

// A verified checkpoint, opened for reading tensors by logical name, whatever
// the number of ranks that wrote it.
class CheckpointReader {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& dir, absl::string_view manifest_sha256 = "");
  virtual ~CheckpointReader() = default;

  virtual const CheckpointManifest& manifest() const = 0;
  // Elements [begin, begin + out's) of the tensor, from whichever pieces they
  // lie in. NOT_FOUND without the tensor, FAILED_PRECONDITION where its shape
  // or type differs (both are named).
  virtual absl::Status ReadWeight(absl::string_view name,
                                  absl::Span<const int64_t> global_shape,
                                  int64_t begin, const Tensor& out) = 0;
  virtual absl::Status ReadOptimizer(absl::string_view name,
                                     absl::Span<const int64_t> global_shape,
                                     int64_t begin, const Tensor& out) = 0;
  // Names of the weights, sorted.
  virtual std::vector<std::string> WeightNames() const = 0;
  // Of rank 0: what all ranks share.
  virtual const RankState& shared_state() const = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_CHECKPOINT_H_
