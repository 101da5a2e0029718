#ifndef CADRE_MODEL_MODEL_DIR_H_
#define CADRE_MODEL_MODEL_DIR_H_

// A Hugging Face model directory, opened and checked: config.json and one or
// several safetensors files. Reads logical tensors (model/tensor_names.h) into
// buffers of the caller, whatever their form on disk: single or per expert,
// fused or split, plain, FP8 blocks or MXFP4. Only the pages of what is asked
// for are touched.
//
//   ASSIGN_OR_RETURN(ModelDir dir, ModelDir::Open(path));
//   dir.Read("model.norm.weight", Tensor(buffer, DType::kF32, {hidden}));
//   dir.ReadExperts("model.layers.1.mlp.experts.down_proj", 16, 32, out);
//
// Cheap to copy (shared, immutable); thread-safe.

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
#include "model/model_spec.h"
#include "model/safetensors.h"
#include "model/tensor_names.h"

namespace cadre {

// How a logical tensor lies on disk: what a writer must do to give it back.
struct DiskPiece {
  std::string disk_name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // as stored
};
struct DiskLayout {
  enum class Form { kWhole, kRowBlocks, kPerExpert } form = Form::kWhole;
  enum class Encoding {
    kPlain,
    kFp8Blocks,
    kMxfp4
  } encoding = Encoding::kPlain;
  // Which of LogicalTensor::expert_namings was found.
  int naming = 0;
  // One piece, one per row block, or per expert and suffix (expert-major).
  std::vector<DiskPiece> pieces;
};

class ModelDir {
 public:
  struct Options {
    // At most this many problems are listed in one error.
    int max_problems = 20;
  };

  // INVALID_ARGUMENT lists what is wrong with the tensors (missing, unknown,
  // wrong shape or dtype), each with its file; DATA_LOSS for damaged files.
  static absl::StatusOr<ModelDir> Open(const std::string& path);
  static absl::StatusOr<ModelDir> Open(const std::string& path,
                                       Options options);

  const std::string& path() const;
  const ModelSpec& spec() const;
  const std::string& config_json() const;

  // In model order; the same list as LogicalTensors(spec()).
  const std::vector<LogicalTensor>& tensors() const;
  // Null when the model has no such tensor.
  const LogicalTensor* Find(absl::string_view reference_name) const;
  // Must be a tensor of this model.
  const DiskLayout& layout(const LogicalTensor& tensor) const;

  // Whole tensor, converted to out's dtype (f32, f64 or bf16; bf16 rounds to
  // nearest even). `out` must have as many elements as the logical shape.
  absl::Status Read(absl::string_view reference_name, Tensor out) const;
  // Experts [begin, end) of a tensor with role kExperts.
  absl::Status ReadExperts(absl::string_view reference_name, int64_t begin,
                           int64_t end, Tensor out) const;

  // Rows [begin, end) of the leading dim of any tensor.
  absl::Status ReadRows(absl::string_view reference_name, int64_t begin,
                        int64_t end, Tensor out) const;

  // Tensors that are not read (vision, multi-token prediction).
  struct Skipped {
    std::vector<std::string> names;
    int64_t bytes = 0;
  };
  const Skipped& skipped() const;
  // Any tensor of the files by its disk name, for writing it back; null when
  // there is none.
  struct RawTensor {
    SafetensorInfo info;
    absl::Span<const char> bytes;
  };
  absl::StatusOr<RawTensor> ReadRaw(absl::string_view disk_name) const;

  // tokenizer.json is there.
  bool has_tokenizer() const;
  // Bytes of all tensors by dtype name ("F32" -> bytes), skipped ones included.
  std::map<std::string, int64_t> BytesByDType() const;
  // Names of the safetensors files, sorted.
  std::vector<std::string> WeightFiles() const;

  // Hex SHA-256 over config.json, the headers and sizes of the weight files:
  // says "the same base model" without reading the weights.
  std::string Fingerprint() const;

 private:
  struct Impl;
  explicit ModelDir(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_MODEL_MODEL_DIR_H_
