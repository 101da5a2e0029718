#ifndef CADRE_MODEL_CHECKPOINT_WRITER_H_
#define CADRE_MODEL_CHECKPOINT_WRITER_H_

// Writes a full Hugging Face checkpoint: the tensors of a trained model under
// the disk names, shapes and split in which its base was read, tensors that
// were skipped unchanged, config.json and tokenizer files copied. One thread.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/common/dtype.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"

namespace cadre {

struct CheckpointOptions {
  // Unset: every tensor keeps the dtype it was read in (quantised ones become
  // bf16). kF32: all tensors. kBF16: all but those that were F32 and stay so on
  // a GPU too (LogicalTensor::keep_f32).
  std::optional<DType> dtype;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
};

// Fills `out` with rows [begin, end) of the leading dim of a logical tensor (an
// expert range for the routed experts), float32. Called once per piece, in no
// particular order.
using TensorSource =
    std::function<absl::Status(const LogicalTensor& tensor, int64_t begin,
                               int64_t end, absl::Span<float> out)>;

// A source that gives back the weights of `dir` (of the base itself, say).
TensorSource SourceFrom(ModelDir dir);

// Names and shapes are those of the base, with the canonical name where it had
// an alias (models.md 1.2). Quantised tensors are written plain, and
// config.json then loses its quantization_config.
//
// Writes to `dir`, which must not exist: everything goes to a temporary folder
// beside it that is renamed at the end. ALREADY_EXISTS otherwise.
absl::Status WriteCheckpoint(const ModelDir& base, const TensorSource& source,
                             const std::string& dir,
                             const CheckpointOptions& options);

}  // namespace cadre

#endif  // CADRE_MODEL_CHECKPOINT_WRITER_H_
