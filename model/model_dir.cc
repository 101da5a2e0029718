#include "model/model_dir.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/model_dir_impl.h"
#include "model/quantized.h"
#include "model/sha256.h"

namespace cadre {
namespace {

constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kSingleFile[] = "model.safetensors";

bool Exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// The files of an index; `placed` gets tensor -> file.
absl::StatusOr<std::set<std::string>> ReadIndex(
    const std::string& path,
    std::vector<std::pair<std::string, std::string>>& placed) {
  CADRE_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const Json* map = json.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": no weight_map"));
  }
  std::set<std::string> files;
  for (const Json::Member& member : map->members()) {
    if (!member.value.is_string()) {
      return absl::DataLossError(absl::StrCat(path, ": the file of tensor ",
                                              member.key, " is not a string"));
    }
    const std::filesystem::path file = member.value.string_value();
    if (file.is_absolute() ||
        std::find(file.begin(), file.end(), "..") != file.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", member.key, " lies in ",
                       member.value.string_value(),
                       ", outside the model's folder; move the file there and "
                       "name it in the index by its own name"));
    }
    files.insert(member.value.string_value());
    placed.emplace_back(member.key, member.value.string_value());
  }
  return files;
}

// Decodes elements [begin, begin + n) of a piece into `out`.
absl::Status DecodePlain(const SafetensorInfo& info, const char* bytes,
                         int64_t begin, int64_t n, DType to, char* out) {
  const char* source = bytes + begin * SizeOf(info.dtype);
  if (to == DType::kBF16 && info.dtype != DType::kF32 &&
      info.dtype != DType::kBF16) {
    std::vector<float> values(static_cast<size_t>(n));
    CADRE_RETURN_IF_ERROR(
        ConvertElements(info.dtype, source, n, DType::kF32, values.data()));
    return ConvertElements(DType::kF32, values.data(), n, to, out);
  }
  return ConvertElements(info.dtype, source, n, to, out);
}

absl::Span<const uint8_t> AsBytes(absl::Span<const char> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

absl::StatusOr<ModelDir> ModelDir::Open(const std::string& path) {
  return Open(path, Options());
}

absl::StatusOr<ModelDir> ModelDir::Open(const std::string& path,
                                        Options options) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  CADRE_ASSIGN_OR_RETURN(impl->config_json, ReadFile(path + "/config.json"));
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(impl->config_json);
  if (!spec.ok()) return Annotate(spec.status(), path);
  impl->spec = *std::move(spec);
  impl->has_tokenizer = Exists(path + "/tokenizer.json");

  std::set<std::string> names = {kSingleFile};
  std::vector<std::pair<std::string, std::string>> placed;
  if (!Exists(path + "/" + kSingleFile)) {
    if (!Exists(path + "/" + kIndexFile)) {
      return absl::NotFoundError(absl::StrCat(path, " has neither ",
                                              kSingleFile, " nor ", kIndexFile,
                                              "; other formats are not read"));
    }
    CADRE_ASSIGN_OR_RETURN(names, ReadIndex(path + "/" + kIndexFile, placed));
  }
  for (const std::string& name : names) {
    CADRE_ASSIGN_OR_RETURN(SafetensorsFile file,
                           SafetensorsFile::Open(path + "/" + name));
    impl->files.push_back(std::move(file));
    impl->file_names.push_back(name);
  }
  CADRE_RETURN_IF_ERROR(impl->Resolve(placed, options.max_problems));
  return ModelDir(std::move(impl));
}

ModelDir::ModelDir(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

const std::string& ModelDir::path() const { return impl_->path; }
const ModelSpec& ModelDir::spec() const { return impl_->spec; }
const std::string& ModelDir::config_json() const { return impl_->config_json; }
const std::vector<LogicalTensor>& ModelDir::tensors() const {
  return impl_->tensors;
}
const ModelDir::Skipped& ModelDir::skipped() const { return impl_->skipped; }
bool ModelDir::has_tokenizer() const { return impl_->has_tokenizer; }
std::vector<std::string> ModelDir::WeightFiles() const {
  return impl_->file_names;
}

const LogicalTensor* ModelDir::Find(absl::string_view reference_name) const {
  const auto it = impl_->by_name.find(std::string(reference_name));
  return it == impl_->by_name.end() ? nullptr : &impl_->tensors[it->second];
}

const DiskLayout& ModelDir::layout(const LogicalTensor& tensor) const {
  return impl_->layouts.at(impl_->by_name.at(tensor.name));
}

absl::StatusOr<ModelDir::RawTensor> ModelDir::ReadRaw(
    absl::string_view disk_name) const {
  const auto it = impl_->located.find(std::string(disk_name));
  if (it == impl_->located.end()) {
    return absl::NotFoundError(
        absl::StrCat(impl_->path, " has no tensor ", disk_name));
  }
  const Located& located = it->second;
  return RawTensor{*located.info,
                   impl_->files[located.file].Bytes(*located.info)};
}

absl::Status ModelDir::Impl::DecodePiece(const DiskPiece& piece,
                                         DiskLayout::Encoding encoding,
                                         int64_t begin, int64_t n, DType to,
                                         char* out) const {
  const Located& located = this->located.at(piece.disk_name);
  const absl::Span<const char> bytes = files[located.file].Bytes(*located.info);
  if (encoding == DiskLayout::Encoding::kPlain) {
    return DecodePlain(*located.info, bytes.data(), begin, n, to, out);
  }
  const Located& scale = this->located.at(ScaleName(piece.disk_name));
  const absl::Span<const char> scale_bytes =
      files[scale.file].Bytes(*scale.info);
  const int64_t rows = piece.shape[0];
  const int64_t cols =
      piece.shape[1] * (encoding == DiskLayout::Encoding::kMxfp4 ? 2 : 1);
  // Quantised pieces are matrices and always read whole.
  std::vector<float> values(static_cast<size_t>(rows * cols));
  if (encoding == DiskLayout::Encoding::kMxfp4) {
    DequantizeMxfp4(AsBytes(bytes), AsBytes(scale_bytes), rows, cols,
                    absl::MakeSpan(values));
  } else {
    std::vector<float> scales(static_cast<size_t>(scale.info->num_elements()));
    CADRE_RETURN_IF_ERROR(ConvertElements(scale.info->dtype, scale_bytes.data(),
                                          scale.info->num_elements(),
                                          DType::kF32, scales.data()));
    DequantizeFp8Blocks(AsBytes(bytes), scales, rows, cols,
                        absl::MakeSpan(values));
  }
  return ConvertElements(DType::kF32, values.data() + begin, n, to, out);
}

absl::Status ModelDir::Impl::ReadRange(const LogicalTensor& tensor,
                                       int64_t begin, int64_t end,
                                       const Tensor& out) const {
  const DType to = out.dtype();
  if (to != DType::kF32 && to != DType::kF64 && to != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, " cannot be read as ",
                     DTypeName(to), "; use f32, f64 or bf16"));
  }
  const int64_t row = tensor.num_elements() / tensor.shape[0];
  const int64_t n = (end - begin) * row;
  if (!out.present() || out.num_elements() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, " ", ShapeString(tensor.shape),
                     ": the buffer ", "is ", out.DebugString(), ", rows ",
                     begin, " to ", end, " have ", n, " elements"));
  }
  const DiskLayout& layout = layouts[by_name.at(tensor.name)];
  char* target = static_cast<char*>(out.raw());
  if (layout.form == DiskLayout::Form::kWhole) {
    return DecodePiece(layout.pieces[0], layout.encoding, begin * row, n, to,
                       target);
  }
  // Row blocks and experts: equal pieces, of which the range may cut the first
  // and the last.
  const int64_t pieces = static_cast<int64_t>(layout.pieces.size());
  const int64_t per_piece = tensor.num_elements() / pieces;
  for (int64_t at = begin * row; at < end * row;) {
    const int64_t piece = at / per_piece;
    const int64_t stop = std::min((piece + 1) * per_piece, end * row);
    CADRE_RETURN_IF_ERROR(DecodePiece(layout.pieces[piece], layout.encoding,
                                      at - piece * per_piece, stop - at, to,
                                      target));
    target += (stop - at) * SizeOf(to);
    at = stop;
  }
  return absl::OkStatus();
}

absl::Status ModelDir::ReadRows(absl::string_view reference_name, int64_t begin,
                                int64_t end, Tensor out) const {
  const LogicalTensor* tensor = Find(reference_name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat(impl_->spec.model_type,
                                            " has no tensor ", reference_name));
  }
  if (begin < 0 || end < begin || end > tensor->shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat("rows ", begin, " to ", end,
                                                   " of ", reference_name, " ",
                                                   ShapeString(tensor->shape)));
  }
  return Annotate(impl_->ReadRange(*tensor, begin, end, out), impl_->path);
}

absl::Status ModelDir::Read(absl::string_view reference_name,
                            Tensor out) const {
  const LogicalTensor* tensor = Find(reference_name);
  return ReadRows(reference_name, 0, tensor != nullptr ? tensor->shape[0] : 0,
                  out);
}

absl::Status ModelDir::ReadExperts(absl::string_view reference_name,
                                   int64_t begin, int64_t end,
                                   Tensor out) const {
  const LogicalTensor* tensor = Find(reference_name);
  if (tensor != nullptr && tensor->role != LogicalTensor::Role::kExperts) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", reference_name, " holds no experts"));
  }
  return ReadRows(reference_name, begin, end, out);
}

std::map<std::string, int64_t> ModelDir::BytesByDType() const {
  std::map<std::string, int64_t> bytes;
  for (const SafetensorsFile& file : impl_->files) {
    for (const SafetensorInfo& info : file.tensors()) {
      bytes[SafetensorsDTypeName(info.dtype)] += info.num_bytes();
    }
  }
  return bytes;
}

std::string ModelDir::Fingerprint() const {
  Sha256 hash;
  hash.Update(absl::StrCat("config.json ", impl_->config_json.size(), "\n"));
  hash.Update(impl_->config_json);
  for (size_t i = 0; i < impl_->files.size(); ++i) {
    const SafetensorsFile& file = impl_->files[i];
    hash.Update(absl::StrCat("\n", impl_->file_names[i], " ", file.file_bytes(),
                             " ", file.header().size(), "\n"));
    hash.Update({file.header().data(), file.header().size()});
  }
  return hash.HexDigest();
}

}  // namespace cadre
