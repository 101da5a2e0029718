#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "model/model_dir_impl.h"
#include "model/quantized.h"

namespace cadre {
namespace {

using Encoding = DiskLayout::Encoding;

bool IsPlainFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 ||
         dtype == DType::kBF16 || dtype == DType::kF16;
}

std::string PackedName(const std::string& name) { return name + "_packed"; }

// What is wrong with the tensors; keeps the first `max`.
class Problems {
 public:
  explicit Problems(int max) : max_(max) {}

  void Add(std::string problem) {
    if (++total_ <= max_) texts_.push_back(std::move(problem));
  }
  absl::Status status(const std::string& path,
                      const std::string& model_type) const {
    if (total_ == 0) return absl::OkStatus();
    std::string more;
    if (total_ > max_) more = absl::StrCat("; and ", total_ - max_, " more");
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", total_, total_ == 1 ? " tensor does" : " tensors do",
        " not fit config.json (model_type ", model_type,
        "): ", absl::StrJoin(texts_, "; "), more));
  }

 private:
  const int64_t max_;
  int64_t total_ = 0;
  std::vector<std::string> texts_;
};

// Matches logical tensors with what lies in the files.
class Resolver {
 public:
  Resolver(absl::flat_hash_map<std::string, Located>& located,
           const std::vector<std::string>& file_names, Problems& problems)
      : located_(located), file_names_(file_names), problems_(problems) {}

  DiskLayout Resolve(const LogicalTensor& tensor);

 private:
  struct Candidate {
    DiskLayout::Form form = DiskLayout::Form::kWhole;
    int naming = 0;
    std::vector<std::string> names;  // of the pieces
  };
  std::vector<Candidate> Candidates(const LogicalTensor& tensor) const;

  bool Present(const std::string& name) const {
    return located_.contains(name) || located_.contains(PackedName(name));
  }
  // The piece under that name; problems are reported.
  std::optional<DiskPiece> Piece(const LogicalTensor& tensor,
                                 const std::string& name,
                                 const std::vector<int64_t>& shape,
                                 Encoding& encoding);
  bool CheckScales(const std::string& disk_name,
                   const std::vector<int64_t>& shape,
                   std::vector<DType> dtypes);
  bool ShapeFits(const LogicalTensor& tensor,
                 const std::vector<int64_t>& expected,
                 const SafetensorInfo& info) const;
  void Missing(const std::string& name, const std::vector<int64_t>& shape) {
    problems_.Add(
        absl::StrCat(file_names_.size() == 1 ? file_names_[0] + ": " : "", name,
                     " ", ShapeString(shape), " is missing"));
  }
  std::string Where(const Located& located) const {
    return absl::StrCat(file_names_[located.file], ": ", located.info->name,
                        " ", located.info->DebugString());
  }

  absl::flat_hash_map<std::string, Located>& located_;
  const std::vector<std::string>& file_names_;
  Problems& problems_;
};

std::vector<Resolver::Candidate> Resolver::Candidates(
    const LogicalTensor& tensor) const {
  std::vector<Candidate> found;
  for (const std::string& name : tensor.whole_names) {
    if (Present(name)) found.push_back({DiskLayout::Form::kWhole, 0, {name}});
  }
  if (!tensor.row_block_names.empty()) {
    Candidate candidate{DiskLayout::Form::kRowBlocks, 0, {}};
    bool any = false;
    for (const std::vector<std::string>& names : tensor.row_block_names) {
      std::string chosen = names.front();
      for (const std::string& name : names) {
        if (!Present(name)) continue;
        chosen = name;
        any = true;
        break;
      }
      candidate.names.push_back(std::move(chosen));
    }
    if (any) found.push_back(std::move(candidate));
  }
  for (size_t i = 0; i < tensor.expert_namings.size(); ++i) {
    const ExpertNaming& naming = tensor.expert_namings[i];
    Candidate candidate{DiskLayout::Form::kPerExpert, static_cast<int>(i), {}};
    bool any = false;
    for (int64_t e = 0; e < tensor.shape[0]; ++e) {
      for (const std::string& suffix : naming.suffixes) {
        candidate.names.push_back(absl::StrCat(naming.prefix, e, suffix));
        any = any || Present(candidate.names.back());
      }
    }
    if (any) found.push_back(std::move(candidate));
  }
  return found;
}

bool Resolver::ShapeFits(const LogicalTensor& tensor,
                         const std::vector<int64_t>& expected,
                         const SafetensorInfo& info) const {
  if (info.shape == expected) return true;
  const int64_t n = info.num_elements();
  if (tensor.any_shape && n == tensor.num_elements()) return true;
  return tensor.padded_elements > 0 && n == tensor.padded_elements;
}

bool Resolver::CheckScales(const std::string& disk_name,
                           const std::vector<int64_t>& shape,
                           std::vector<DType> dtypes) {
  const std::string name = ScaleName(disk_name);
  const auto it = located_.find(name);
  if (it == located_.end()) {
    problems_.Add(absl::StrCat(Where(located_.at(disk_name)),
                               " has no scales (", name, " is missing)"));
    return false;
  }
  it->second.used = true;
  const SafetensorInfo& info = *it->second.info;
  if (info.shape != shape ||
      std::find(dtypes.begin(), dtypes.end(), info.dtype) == dtypes.end()) {
    problems_.Add(absl::StrCat(Where(it->second), " should be ",
                               SafetensorsDTypeName(dtypes.front()), " ",
                               ShapeString(shape)));
    return false;
  }
  return true;
}

std::optional<DiskPiece> Resolver::Piece(const LogicalTensor& tensor,
                                         const std::string& name,
                                         const std::vector<int64_t>& shape,
                                         Encoding& encoding) {
  auto it = located_.find(name);
  if (it == located_.end()) {
    // Packed MXFP4: two columns a byte, one scale per 32.
    it = located_.find(PackedName(name));
    if (it == located_.end()) {
      Missing(name, shape);
      return std::nullopt;
    }
    Located& located = it->second;
    located.used = true;
    encoding = Encoding::kMxfp4;
    const bool fits =
        shape.size() == 2 && shape[1] % kMxfp4Block == 0 &&
        located.info->dtype == DType::kU8 &&
        located.info->shape == std::vector<int64_t>{shape[0], shape[1] / 2};
    if (!fits) {
      problems_.Add(absl::StrCat(Where(located), " does not pack ",
                                 ShapeString(shape),
                                 " as MXFP4 (U8, two columns a byte)"));
      return std::nullopt;
    }
    if (!CheckScales(it->first, {shape[0], shape[1] / kMxfp4Block},
                     {DType::kU8})) {
      return std::nullopt;
    }
    return DiskPiece{it->first, located.info->dtype, located.info->shape};
  }
  Located& located = it->second;
  located.used = true;
  const SafetensorInfo& info = *located.info;
  if (!ShapeFits(tensor, shape, info)) {
    problems_.Add(absl::StrCat(Where(located), " should have shape ",
                               ShapeString(shape)));
    return std::nullopt;
  }
  const bool fp8 =
      info.dtype == DType::kF8E4M3 && tensor.is_matrix && shape.size() == 2;
  if (!fp8 && !IsPlainFloat(info.dtype)) {
    problems_.Add(
        absl::StrCat(Where(located), " should be F32, BF16, F16 or F64",
                     tensor.is_matrix ? ", or F8_E4M3 with block scales" : ""));
    return std::nullopt;
  }
  encoding = fp8 ? Encoding::kFp8Blocks : Encoding::kPlain;
  if (fp8 && !CheckScales(name,
                          {(shape[0] + kFp8Block - 1) / kFp8Block,
                           (shape[1] + kFp8Block - 1) / kFp8Block},
                          {DType::kF32, DType::kBF16})) {
    return std::nullopt;
  }
  return DiskPiece{name, info.dtype, info.shape};
}

DiskLayout Resolver::Resolve(const LogicalTensor& tensor) {
  DiskLayout layout;
  const std::vector<Candidate> candidates = Candidates(tensor);
  if (candidates.empty()) {
    std::string name = tensor.whole_names.front();
    if (!tensor.expert_namings.empty()) {
      const ExpertNaming& naming = tensor.expert_namings.front();
      name = absl::StrCat(naming.prefix, "0", naming.suffixes.front(),
                          " and the other experts");
    } else if (!tensor.row_block_names.empty()) {
      name = absl::StrCat(tensor.row_block_names.front().front(), " (part of ",
                          tensor.name, ")");
    }
    Missing(name, tensor.shape);
    return layout;
  }
  if (candidates.size() > 1) {
    problems_.Add(absl::StrCat(tensor.name, " is stored twice, as ",
                               candidates[0].names.front(), " and as ",
                               candidates[1].names.front()));
  }
  const Candidate& chosen = candidates.front();
  layout.form = chosen.form;
  layout.naming = chosen.naming;
  std::vector<int64_t> shape = tensor.shape;
  if (chosen.form == DiskLayout::Form::kRowBlocks) {
    shape[0] /= static_cast<int64_t>(chosen.names.size());
  } else if (chosen.form == DiskLayout::Form::kPerExpert) {
    const int64_t per_expert =
        static_cast<int64_t>(chosen.names.size()) / shape[0];
    shape = {shape[1] / per_expert, shape[2]};
  }
  bool first = true;
  for (const std::string& name : chosen.names) {
    Encoding encoding = Encoding::kPlain;
    std::optional<DiskPiece> piece = Piece(tensor, name, shape, encoding);
    if (!piece) continue;
    if (first) layout.encoding = encoding;
    if (encoding != layout.encoding) {
      problems_.Add(absl::StrCat(piece->disk_name,
                                 " is encoded unlike the other parts of ",
                                 tensor.name));
    }
    first = false;
    layout.pieces.push_back(*std::move(piece));
  }
  return layout;
}

}  // namespace

std::string ScaleName(const std::string& disk_name) {
  absl::string_view base = disk_name;
  if (absl::ConsumeSuffix(&base, "_packed"))
    return absl::StrCat(base, "_scale");
  return disk_name + "_scale_inv";
}

absl::Status ModelDir::Impl::Resolve(
    const std::vector<std::pair<std::string, std::string>>& placed,
    int max_problems) {
  Problems problems(max_problems);
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorInfo& info : files[i].tensors()) {
      const auto [it, added] =
          located.try_emplace(info.name, Located{static_cast<int>(i), &info});
      if (!added) {
        problems.Add(absl::StrCat(info.name, " is in both ",
                                  file_names[it->second.file], " and ",
                                  file_names[i]));
      }
    }
  }
  for (const auto& [name, file] : placed) {
    const auto it = located.find(name);
    if (it == located.end() || file_names[it->second.file] != file) {
      problems.Add(absl::StrCat(file, ": ", name,
                                " is missing, though the index says it is "
                                "there"));
    }
  }
  tensors = LogicalTensors(spec);
  Resolver resolver(located, file_names, problems);
  for (size_t i = 0; i < tensors.size(); ++i) {
    by_name.emplace(tensors[i].name, i);
    layouts.push_back(resolver.Resolve(tensors[i]));
  }
  if (spec.tie_word_embeddings) {
    // Some writers store the tied head once more; the embedding counts.
    const auto it = located.find(LmHeadName(spec));
    if (it != located.end()) it->second.used = true;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorInfo& info : files[i].tensors()) {
      const Located& entry = located.at(info.name);
      if (entry.used) continue;
      if (IsSkippedTensor(spec, info.name)) {
        skipped.names.push_back(info.name);
        skipped.bytes += info.num_bytes();
      } else {
        problems.Add(absl::StrCat(file_names[i], ": ", info.name, " ",
                                  info.DebugString(),
                                  " is not part of this model"));
      }
    }
  }
  return problems.status(path, spec.model_type);
}

}  // namespace cadre
