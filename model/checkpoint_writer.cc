#include "model/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/safetensors.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

// Floats asked of the source at once.
constexpr int64_t kChunkElements = 1 << 24;

// One tensor to write: rows [begin, end) of a logical tensor, of which
// [offset, offset + elements) is meant, or the bytes of a skipped one.
struct Output {
  SafetensorInfo info;
  const LogicalTensor* tensor = nullptr;  // null: skipped tensor, raw bytes
  int64_t begin = 0, end = 0;
  int64_t offset = 0, elements = 0;
};

DType OutputDType(const LogicalTensor& tensor, DType stored,
                  const CheckpointOptions& options) {
  if (options.dtype == DType::kBF16) {
    return tensor.keep_f32 && stored == DType::kF32 ? DType::kF32
                                                    : DType::kBF16;
  }
  if (options.dtype) return *options.dtype;
  if (stored == DType::kU8 || stored == DType::kF8E4M3) return DType::kBF16;
  return stored == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

// Name of a plain tensor in place of a packed one.
std::string PlainName(const std::string& disk_name) {
  return std::string(absl::StripSuffix(disk_name, "_packed"));
}

void AddWhole(const LogicalTensor& tensor, const DiskPiece& piece,
              const CheckpointOptions& options, std::vector<Output>& outputs) {
  std::vector<int64_t> shape = tensor.any_shape || tensor.padded_elements > 0
                                   ? piece.shape
                                   : tensor.shape;
  // Experts that were stacked stay so; other names become the canonical ones.
  const DType dtype = OutputDType(tensor, piece.dtype, options);
  if (tensor.row_block_names.empty()) {
    outputs.push_back({{tensor.whole_names.front(), dtype, shape, 0, 0},
                       &tensor,
                       0,
                       tensor.shape[0],
                       0,
                       tensor.num_elements()});
    return;
  }
  const int64_t blocks = static_cast<int64_t>(tensor.row_block_names.size());
  shape[0] /= blocks;
  for (int64_t i = 0; i < blocks; ++i) {
    outputs.push_back({{tensor.row_block_names[i].front(), dtype, shape, 0, 0},
                       &tensor,
                       i * shape[0],
                       (i + 1) * shape[0],
                       0,
                       tensor.num_elements() / blocks});
  }
}

void AddPieces(const LogicalTensor& tensor, const DiskLayout& layout,
               const CheckpointOptions& options, std::vector<Output>& outputs) {
  const int64_t pieces = static_cast<int64_t>(layout.pieces.size());
  const int64_t elements = tensor.num_elements() / pieces;
  const bool experts = layout.form == DiskLayout::Form::kPerExpert;
  const int64_t per_row = experts ? pieces / tensor.shape[0] : 1;
  for (int64_t i = 0; i < pieces; ++i) {
    const DiskPiece& piece = layout.pieces[i];
    Output output;
    output.tensor = &tensor;
    output.elements = elements;
    std::vector<int64_t> shape = piece.shape;
    if (experts) {
      shape = {tensor.shape[1] / per_row, tensor.shape[2]};
      output.begin = i / per_row;
      output.end = output.begin + 1;
      output.offset = i % per_row * elements;
    } else {
      output.begin = i * tensor.shape[0] / pieces;
      output.end = (i + 1) * tensor.shape[0] / pieces;
    }
    output.info = {experts ? PlainName(piece.disk_name)
                           : tensor.row_block_names[i].front(),
                   OutputDType(tensor, piece.dtype, options), shape, 0, 0};
    outputs.push_back(std::move(output));
  }
}

absl::StatusOr<std::vector<Output>> PlanOutputs(
    const ModelDir& base, const CheckpointOptions& options) {
  std::vector<Output> outputs;
  for (const LogicalTensor& tensor : base.tensors()) {
    const DiskLayout& layout = base.layout(tensor);
    if (layout.form == DiskLayout::Form::kWhole) {
      AddWhole(tensor, layout.pieces.front(), options, outputs);
    } else {
      AddPieces(tensor, layout, options, outputs);
    }
  }
  for (const std::string& name : base.skipped().names) {
    CADRE_ASSIGN_OR_RETURN(const ModelDir::RawTensor raw, base.ReadRaw(name));
    Output output;
    output.info = raw.info;
    outputs.push_back(std::move(output));
  }
  return outputs;
}

// Consecutive outputs, each shard at most `max_bytes` unless one tensor is
// larger.
std::vector<std::vector<Output>> Split(std::vector<Output> outputs,
                                       int64_t max_bytes) {
  std::vector<std::vector<Output>> shards(1);
  int64_t bytes = 0;
  for (Output& output : outputs) {
    const int64_t size = output.info.num_bytes();
    if (bytes > 0 && bytes + size > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(std::move(output));
  }
  return shards;
}

// Fetches from the source in chunks of rows, converts and appends.
absl::Status WriteTensor(const Output& output, const TensorSource& source,
                         SafetensorsWriter& writer) {
  const LogicalTensor& tensor = *output.tensor;
  const int64_t row = tensor.num_elements() / tensor.shape[0];
  const bool part_of_row = output.elements != (output.end - output.begin) * row;
  const int64_t rows_per_chunk =
      part_of_row ? output.end - output.begin
                  : std::max<int64_t>(kChunkElements / row, 1);
  std::vector<float> values;
  std::vector<char> bytes;
  for (int64_t begin = output.begin; begin < output.end;
       begin += rows_per_chunk) {
    const int64_t end = std::min(begin + rows_per_chunk, output.end);
    values.resize(static_cast<size_t>((end - begin) * row));
    CADRE_RETURN_IF_ERROR(Annotate(
        source(tensor, begin, end, absl::MakeSpan(values)), tensor.name));
    const int64_t n =
        part_of_row ? output.elements : static_cast<int64_t>(values.size());
    bytes.resize(static_cast<size_t>(n * SizeOf(output.info.dtype)));
    CADRE_RETURN_IF_ERROR(ConvertElements(DType::kF32,
                                          values.data() + output.offset, n,
                                          output.info.dtype, bytes.data()));
    CADRE_RETURN_IF_ERROR(writer.Append(output.info.name, bytes));
  }
  // Zeros behind a padded tensor.
  const int64_t padding = output.info.num_elements() - output.elements;
  bytes.assign(static_cast<size_t>(padding * SizeOf(output.info.dtype)), 0);
  return writer.Append(output.info.name, bytes);
}

absl::Status WriteShard(const ModelDir& base, const TensorSource& source,
                        std::vector<Output> outputs, const std::string& path) {
  std::map<std::string, const Output*> by_name;
  std::vector<SafetensorInfo> infos;
  for (const Output& output : outputs) {
    by_name[output.info.name] = &output;
    infos.push_back(output.info);
  }
  SortForSafetensors(infos);
  CADRE_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, infos));
  for (const SafetensorInfo& info : infos) {
    const Output& output = *by_name.at(info.name);
    if (output.tensor != nullptr) {
      CADRE_RETURN_IF_ERROR(WriteTensor(output, source, *writer));
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(const ModelDir::RawTensor raw,
                           base.ReadRaw(info.name));
    CADRE_RETURN_IF_ERROR(writer->Append(info.name, raw.bytes));
  }
  return writer->Commit();
}

absl::Status WriteWeights(const ModelDir& base, const TensorSource& source,
                          std::vector<std::vector<Output>> shards,
                          const std::string& dir) {
  if (shards.size() == 1) {
    return WriteShard(base, source, std::move(shards[0]),
                      dir + "/model.safetensors");
  }
  int64_t total = 0;
  std::map<std::string, std::string> placed;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    for (const Output& output : shards[i]) {
      placed[output.info.name] = name;
      total += output.info.num_bytes();
    }
    CADRE_RETURN_IF_ERROR(
        WriteShard(base, source, std::move(shards[i]), dir + "/" + name));
  }
  std::vector<Json::Member> map;
  for (const auto& [tensor, file] : placed) {
    map.push_back({tensor, Json::String(file), 0});
  }
  const Json index = Json::Object(
      {{"metadata", Json::Object({{"total_size", Json::Int(total), 0}}), 0},
       {"weight_map", Json::Object(std::move(map)), 0}});
  return WriteFileAtomic(dir + "/model.safetensors.index.json",
                         WriteJson(index, {.indent = 2}) + "\n");
}

// Without quantization_config, at top level and in text_config.
Json WithoutQuantization(const Json& config) {
  std::vector<Json::Member> members;
  for (const Json::Member& member : config.members()) {
    if (member.key == "quantization_config") continue;
    members.push_back(member);
    if (member.key == "text_config" && member.value.is_object()) {
      members.back().value = WithoutQuantization(member.value);
    }
  }
  return Json::Object(std::move(members));
}

absl::StatusOr<std::string> NewConfig(const ModelDir& base) {
  bool quantised = base.spec().fp8_blocks;
  for (const LogicalTensor& tensor : base.tensors()) {
    quantised = quantised ||
                base.layout(tensor).encoding != DiskLayout::Encoding::kPlain;
  }
  if (!quantised) return base.config_json();
  CADRE_ASSIGN_OR_RETURN(const Json config, ParseJson(base.config_json()));
  return WriteJson(WithoutQuantization(config), {.indent = 2}) + "\n";
}

absl::Status FsError(absl::string_view action, const std::string& path,
                     const std::error_code& error) {
  return FileError(action, path, error.value());
}

// Tokenizer, generation settings, code: every small text file but the weights'
// index and, where the base is a result of Cadre, its list of digests.
absl::Status CopySideFiles(const std::string& from, const std::string& to) {
  constexpr std::array<const char*, 6> kExtensions = {
      ".json", ".txt", ".jinja", ".model", ".tiktoken", ".py"};
  std::error_code error;
  fs::directory_iterator entries(from, error);
  if (error) return FsError("list", from, error);
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    if (error) return FsError("list", from, error);
    const fs::path& path = entries->path();
    const std::string name = path.filename().string();
    if (name == "config.json" || name == "cadre_manifest.json" ||
        absl::EndsWith(name, ".index.json") ||
        std::find(kExtensions.begin(), kExtensions.end(),
                  path.extension().string()) == kExtensions.end() ||
        !fs::is_regular_file(path, error)) {
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(const std::string content, ReadFile(path.string()));
    CADRE_RETURN_IF_ERROR(WriteFileAtomic(to + "/" + name, content));
  }
  return absl::OkStatus();
}

absl::Status WriteInto(const ModelDir& base, const TensorSource& source,
                       const std::string& dir,
                       const CheckpointOptions& options) {
  CADRE_ASSIGN_OR_RETURN(std::vector<Output> outputs,
                         PlanOutputs(base, options));
  CADRE_RETURN_IF_ERROR(WriteWeights(
      base, source, Split(std::move(outputs), options.max_shard_bytes), dir));
  CADRE_RETURN_IF_ERROR(CopySideFiles(base.path(), dir));
  CADRE_ASSIGN_OR_RETURN(const std::string config, NewConfig(base));
  return WriteFileAtomic(dir + "/config.json", config);
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path, errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  return result == 0 ? absl::OkStatus() : FileError("fsync", path, error);
}

}  // namespace

TensorSource SourceFrom(ModelDir dir) {
  return [dir = std::move(dir)](const LogicalTensor& tensor, int64_t begin,
                                int64_t end,
                                absl::Span<float> out) -> absl::Status {
    return dir.ReadRows(
        tensor.name, begin, end,
        Tensor(out.data(), DType::kF32, {static_cast<int64_t>(out.size())}));
  };
}

absl::Status WriteCheckpoint(const ModelDir& base, const TensorSource& source,
                             const std::string& dir,
                             const CheckpointOptions& options) {
  if (options.dtype && *options.dtype != DType::kF32 &&
      *options.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoints are written as f32 or bf16, not ",
                     DTypeName(*options.dtype)));
  }
  std::error_code error;
  if (fs::exists(dir, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(dir, " exists; a checkpoint is written to a new folder"));
  }
  const std::string target = std::string(absl::StripSuffix(dir, "/"));
  const std::string temporary = absl::StrCat(target, ".", ::getpid(), ".tmp");
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return FsError("create folder", temporary, error);
  absl::Status status = WriteInto(base, source, temporary, options);
  if (status.ok()) status = SyncFolder(temporary);
  if (status.ok()) {
    fs::rename(temporary, target, error);
    if (error) status = FsError("rename to", target, error);
  }
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return Annotate(status, absl::StrCat("cannot write checkpoint ", dir));
  }
  const fs::path parent = fs::path(target).parent_path();
  return SyncFolder(parent.empty() ? "." : parent.string());
}

}  // namespace cadre
