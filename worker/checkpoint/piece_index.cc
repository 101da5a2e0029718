#include "worker/checkpoint/piece_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

bool IsWhole(const TensorPiece& piece) {
  return piece.begin == 0 &&
         piece.value.num_elements() == NumElements(piece.global_shape);
}

std::string ShapeKey(absl::string_view name) {
  return absl::StrCat("shape:", name);
}

}  // namespace

SafetensorInfo PieceInfo(const TensorPiece& piece) {
  if (IsWhole(piece)) {
    return {.name = piece.name,
            .dtype = piece.value.dtype(),
            .shape = piece.global_shape};
  }
  return {.name = absl::StrCat(piece.name, "@", piece.begin),
          .dtype = piece.value.dtype(),
          .shape = {piece.value.num_elements()}};
}

void AddPieceMetadata(const TensorPiece& piece,
                      std::map<std::string, std::string>* metadata) {
  if (IsWhole(piece)) return;
  (*metadata)[ShapeKey(piece.name)] = absl::StrJoin(piece.global_shape, ",");
}

absl::Status PieceIndex::Add(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const SafetensorInfo& info : files_.back()->tensors()) {
    CADRE_RETURN_IF_ERROR(Annotate(AddPiece(*files_.back(), info), path));
  }
  return absl::OkStatus();
}

absl::Status PieceIndex::AddPiece(const SafetensorsFile& file,
                                  const SafetensorInfo& info) {
  const std::vector<std::string> parts =
      absl::StrSplit(info.name, absl::MaxSplits('@', 1));
  std::vector<int64_t> shape = info.shape;
  int64_t begin = 0;
  if (parts.size() == 2) {
    const auto text = file.metadata().find(ShapeKey(parts[0]));
    bool good = text != file.metadata().end() && info.shape.size() == 1 &&
                absl::SimpleAtoi(parts[1], &begin) && begin >= 0;
    shape.clear();
    if (good) {
      for (const auto& dim : absl::StrSplit(text->second, ',')) {
        shape.push_back(0);
        good = good && absl::SimpleAtoi(dim, &shape.back());
      }
    }
    if (!good) {
      return absl::DataLossError(absl::StrCat(
          info.name,
          ": a piece needs one dimension and the whole shape in the "
          "file's metadata"));
    }
  }
  const auto [at, is_new] = entries_.try_emplace(
      parts[0], Entry{.shape = shape, .dtype = info.dtype});
  if (!is_new &&
      (at->second.shape != shape || at->second.dtype != info.dtype)) {
    return absl::DataLossError(absl::StrCat(
        parts[0], " is of shape ", ShapeString(shape), " here and ",
        ShapeString(at->second.shape), " in another file, or of another type"));
  }
  if (!at->second.pieces.emplace(begin, Piece{&file, &info}).second) {
    return absl::DataLossError(absl::StrCat("tensor ", parts[0],
                                            " from element ", begin,
                                            " on is in another file too"));
  }
  return absl::OkStatus();
}

absl::Status PieceIndex::CheckCoverage() const {
  for (const auto& [name, entry] : entries_) {
    int64_t covered = 0;
    for (const auto& [begin, piece] : entry.pieces) {
      if (begin != covered) break;
      covered += piece.info->num_elements();
    }
    const int64_t total = NumElements(entry.shape);
    const int64_t last =
        entry.pieces.empty()
            ? 0
            : entry.pieces.rbegin()->first +
                  entry.pieces.rbegin()->second.info->num_elements();
    if (covered == total && last == total) continue;
    return absl::DataLossError(absl::StrCat(
        "tensor ", name, " ", ShapeString(entry.shape), " is in ",
        entry.pieces.size(), " pieces that do not fit together behind element ",
        covered, " of ", total));
  }
  return absl::OkStatus();
}

absl::Status PieceIndex::Read(absl::string_view name,
                              absl::Span<const int64_t> global_shape,
                              int64_t begin, const Tensor& out,
                              const std::string& dir) const {
  const auto it = entries_.find(std::string(name));
  if (it == entries_.end()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", dir, " has no tensor ", name));
  }
  const Entry& entry = it->second;
  if (entry.dtype != out.dtype() ||
      absl::MakeConstSpan(entry.shape) != global_shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", dir, ": tensor ", name, " is ",
        SafetensorsDTypeName(entry.dtype), " ", ShapeString(entry.shape),
        ", the job has ", SafetensorsDTypeName(out.dtype()), " ",
        ShapeString(global_shape)));
  }
  const int64_t end = begin + out.num_elements();
  const int64_t size = SizeOf(out.dtype());
  auto at = entry.pieces.upper_bound(begin);
  if (at != entry.pieces.begin()) --at;
  int64_t done = begin;
  for (; done < end && at != entry.pieces.end(); ++at) {
    const auto& [first, piece] = *at;
    const int64_t stop = std::min(end, first + piece.info->num_elements());
    if (first > done || stop <= done) break;
    std::memcpy(static_cast<char*>(out.raw()) + (done - begin) * size,
                piece.file->Bytes(*piece.info).data() + (done - first) * size,
                (stop - done) * size);
    done = stop;
  }
  if (done >= end) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("checkpoint ", dir, ": tensor ", name,
                                          " ends at element ", done, ", ", end,
                                          " are wanted"));
}

std::vector<std::string> PieceIndex::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : entries_) names.push_back(name);
  return names;
}

}  // namespace cadre
