#ifndef CADRE_MODEL_CHECKPOINT_WRITER_H_
#define CADRE_MODEL_CHECKPOINT_WRITER_H_

// Writes a full Hugging Face checkpoint: the tensors of a trained model under
// the disk names, shapes and split in which its base was read, tensors that
// were skipped unchanged, config.json and tokenizer files copied. One thread.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/common/dtype.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"

namespace cadre {

struct CheckpointOptions {
  // kF32 or kBF16. Quantised tensors are written plain in this dtype too, and
  // config.json loses its quantization_config.
  DType dtype = DType::kF32;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
};

// Fills `out` with rows [begin, end) of the leading dim of a logical tensor (an
// expert range for the routed experts), float32. Called once per piece, in no
// particular order.
using TensorSource =
    std::function<absl::Status(const LogicalTensor& tensor, int64_t begin,
                               int64_t end, absl::Span<float> out)>;

// Writes to `dir`, which must not exist: everything goes to a temporary folder
// beside it that is renamed at the end. ALREADY_EXISTS otherwise.
absl::Status WriteCheckpoint(const ModelDir& base, const TensorSource& source,
                             const std::string& dir,
                             const CheckpointOptions& options);

}  // namespace cadre

#endif  // CADRE_MODEL_CHECKPOINT_WRITER_H_
