#include "worker/train/scratch_export.h"

#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/safetensors.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json"};

// One tensor on disk: part `part` of `parts` equal parts of rows [begin, end).
struct DiskTensor {
  const LogicalTensor* tensor = nullptr;
  int64_t begin = 0, end = 0;
  int64_t part = 0, parts = 1;
};

using DiskTensors = std::map<std::string, DiskTensor>;

void AddExperts(const LogicalTensor& tensor, DiskTensors* out,
                std::vector<SafetensorInfo>* infos) {
  const ExpertNaming& naming = tensor.expert_namings.front();
  const int64_t parts = static_cast<int64_t>(naming.suffixes.size());
  for (int64_t e = 0; e < tensor.shape[0]; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      const std::string name =
          absl::StrCat(naming.prefix, e, naming.suffixes[part]);
      (*out)[name] = {&tensor, e, e + 1, part, parts};
      infos->push_back(
          {.name = name, .shape = {tensor.shape[1] / parts, tensor.shape[2]}});
    }
  }
}

void AddRowBlocks(const LogicalTensor& tensor, DiskTensors* out,
                  std::vector<SafetensorInfo>* infos) {
  std::vector<int64_t> shape = tensor.shape;
  shape[0] /= static_cast<int64_t>(tensor.row_block_names.size());
  int64_t begin = 0;
  for (const std::vector<std::string>& names : tensor.row_block_names) {
    (*out)[names.front()] = {&tensor, begin, begin + shape[0]};
    infos->push_back({.name = names.front(), .shape = shape});
    begin += shape[0];
  }
}

}  // namespace

absl::Status WriteScratchCheckpoint(const ModelSpec& spec,
                                    absl::string_view config_json,
                                    const std::string& tokenizer_dir,
                                    const TensorSource& source,
                                    const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return FileError("create", dir, error.value());
  const std::vector<LogicalTensor> tensors = LogicalTensors(spec);
  DiskTensors disk;
  std::vector<SafetensorInfo> infos;
  for (const LogicalTensor& tensor : tensors) {
    if (!tensor.expert_namings.empty()) {
      AddExperts(tensor, &disk, &infos);
    } else if (!tensor.row_block_names.empty()) {
      AddRowBlocks(tensor, &disk, &infos);
    } else {
      disk[tensor.whole_names.front()] = {&tensor, 0, tensor.shape[0]};
      infos.push_back(
          {.name = tensor.whole_names.front(), .shape = tensor.shape});
    }
  }
  SortForSafetensors(infos);
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                         SafetensorsWriter::Create(
                             absl::StrCat(dir, "/model.safetensors"), infos));
  std::vector<float> rows;
  for (const SafetensorInfo& info : infos) {
    const DiskTensor& piece = disk[info.name];
    const int64_t n = info.num_elements();
    rows.resize(n * piece.parts);
    CADRE_RETURN_IF_ERROR(
        source(*piece.tensor, piece.begin, piece.end, absl::MakeSpan(rows)));
    CADRE_RETURN_IF_ERROR(writer->Append(
        info.name, {reinterpret_cast<const char*>(rows.data() + piece.part * n),
                    n * sizeof(float)}));
  }
  CADRE_RETURN_IF_ERROR(writer->Commit());
  for (const char* name : kTokenizerFiles) {
    const fs::path from = fs::path(tokenizer_dir) / name;
    if (tokenizer_dir.empty() || !fs::exists(from, error)) continue;
    fs::copy_file(from, fs::path(dir) / name, error);
    if (error) return FileError("copy", from.string(), error.value());
  }
  return WriteFileAtomic(absl::StrCat(dir, "/config.json"), config_json);
}

}  // namespace cadre
