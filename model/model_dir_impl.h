#ifndef CADRE_MODEL_MODEL_DIR_IMPL_H_
#define CADRE_MODEL_MODEL_DIR_IMPL_H_

// State of a ModelDir and the matching of disk names to logical tensors; for
// model_dir*.cc only.

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/model_dir.h"

namespace cadre {

// Where a tensor of the files is.
struct Located {
  int file = 0;
  const SafetensorInfo* info = nullptr;
  bool used = false;
};

// Name of the scales of a quantised tensor: "X.weight" -> X.weight_scale_inv
// (FP8), "X.weight_packed" -> X.weight_scale (MXFP4).
std::string ScaleName(const std::string& disk_name);

struct ModelDir::Impl {
  std::string path;
  std::string config_json;
  ModelSpec spec;
  std::vector<std::string> file_names;  // sorted, parallel to files
  std::vector<SafetensorsFile> files;
  absl::flat_hash_map<std::string, Located> located;  // by disk name
  std::vector<LogicalTensor> tensors;
  std::vector<DiskLayout> layouts;                   // parallel to tensors
  absl::flat_hash_map<std::string, size_t> by_name;  // into tensors
  Skipped skipped;
  bool has_tokenizer = false;

  // Fills located, tensors, layouts, by_name and skipped from the files, or
  // lists what does not fit. `placed`: tensor -> file of an index, or empty.
  absl::Status Resolve(
      const std::vector<std::pair<std::string, std::string>>& placed,
      int max_problems);

  // Rows [begin, end) of the leading dim.
  absl::Status ReadRange(const LogicalTensor& tensor, int64_t begin,
                         int64_t end, const Tensor& out) const;
  absl::Status DecodePiece(const DiskPiece& piece,
                           DiskLayout::Encoding encoding, int64_t begin,
                           int64_t n, DType to, char* out) const;
};

}  // namespace cadre

#endif  // CADRE_MODEL_MODEL_DIR_IMPL_H_
