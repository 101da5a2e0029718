#ifndef CADRE_WORKER_CHECKPOINT_PIECE_INDEX_H_
#define CADRE_WORKER_CHECKPOINT_PIECE_INDEX_H_

// The pieces of tensors in the files of a checkpoint, and how they are named
// there: a whole tensor under its own name and shape; a stretch of one as
// "NAME@BEGIN", one row, with the whole shape in the file's metadata under
// "shape:NAME". Owns the open files. Not thread-safe while files are added.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/tensor.h"
#include "model/safetensors.h"
#include "worker/checkpoint/checkpoint.h"

namespace cadre {

// How a piece is stored.
SafetensorInfo PieceInfo(const TensorPiece& piece);
// Adds what the file's metadata must say of it.
void AddPieceMetadata(const TensorPiece& piece,
                      std::map<std::string, std::string>* metadata);

class PieceIndex {
 public:
  // DATA_LOSS for a malformed file or name.
  absl::Status Add(const std::string& path);
  // That the pieces of every tensor cover it and do not overlap; the first one
  // that they do not is named: DATA_LOSS.
  absl::Status CheckCoverage() const;
  absl::Status Read(absl::string_view name,
                    absl::Span<const int64_t> global_shape, int64_t begin,
                    const Tensor& out, const std::string& dir) const;
  std::vector<std::string> Names() const;

 private:
  struct Piece {
    const SafetensorsFile* file = nullptr;
    const SafetensorInfo* info = nullptr;
  };
  struct Entry {
    std::vector<int64_t> shape;
    DType dtype = DType::kF32;
    std::map<int64_t, Piece> pieces;  // by first element
  };
  absl::Status AddPiece(const SafetensorsFile& file,
                        const SafetensorInfo& info);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_PIECE_INDEX_H_
