#include "tests/parity/golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/safetensors.h"

namespace cadre::parity {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::vector<int64_t>> ReadInts(const SafetensorsFile& file,
                                              const char* name,
                                              std::vector<int64_t>* shape) {
  const SafetensorInfo* info = file.Find(name);
  if (info == nullptr || info->dtype != DType::kI64 ||
      info->shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", name, " must be I64 [B, T]"));
  }
  *shape = info->shape;
  std::vector<int64_t> out(info->num_elements());
  std::memcpy(out.data(), file.Bytes(*info).data(), out.size() * 8);
  return out;
}

absl::Status ReadBatch(const SafetensorsFile& file, Golden* golden) {
  std::vector<int64_t> shape, label_shape;
  CADRE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                         ReadInts(file, "input_ids", &shape));
  CADRE_ASSIGN_OR_RETURN(const std::vector<int64_t> labels,
                         ReadInts(file, "labels", &label_shape));
  if (shape != label_shape) {
    return absl::InvalidArgumentError("input_ids and labels differ in shape");
  }
  const int64_t T = shape[1];
  golden->sequence_length = T;
  Batch& batch = golden->batch;
  batch.cu_seqlens = {0};
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      batch.ids.push_back(static_cast<int32_t>(ids[b * T + t]));
      const int64_t next = t + 1 < T ? labels[b * T + t + 1] : Batch::kIgnore;
      batch.targets.push_back(static_cast<int32_t>(next));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>((b + 1) * T));
  }
  return absl::OkStatus();
}

Trajectory ToTrajectory(const nlohmann::json& list) {
  Trajectory out;
  for (const auto& step : list) {
    out.emplace_back(step[0].get<double>(), step[1].get<double>());
  }
  return out;
}

absl::Status ReadTrajectory(const std::string& path, Golden* golden) {
  std::ifstream in(path);
  if (!in) return absl::OkStatus();  // a fixture may be without
  try {
    const nlohmann::json j = nlohmann::json::parse(in);
    if (j.contains("full_adamw")) golden->full = ToTrajectory(j["full_adamw"]);
    if (j.contains("lora")) {
      for (const auto& [run, list] : j["lora"].items()) {
        golden->lora[run] = ToTrajectory(list);
      }
    }
    golden->lr_full = j.at("lr_full").get<double>();
    golden->lr_lora = j.at("lr_lora").get<double>();
    golden->weight_decay_full = j.at("weight_decay_full").get<double>();
    golden->beta1 = j.at("betas")[0].get<double>();
    golden->beta2 = j.at("betas")[1].get<double>();
    golden->epsilon = j.at("eps").get<double>();
    golden->max_grad_norm = j.at("max_grad_norm").get<double>();
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NamedTensors> ReadTensors(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(path));
  NamedTensors out;
  for (const SafetensorInfo& info : file.tensors()) {
    if (info.dtype == DType::kI64) continue;
    NamedTensor& tensor = out[info.name];
    tensor.shape = info.shape;
    tensor.values.resize(info.num_elements());
    CADRE_RETURN_IF_ERROR(ConvertElements(info.dtype, file.Bytes(info).data(),
                                          info.num_elements(), DType::kF32,
                                          tensor.values.data()));
  }
  return out;
}

absl::StatusOr<Golden> ReadGolden(const std::string& dir) {
  std::error_code error;
  if (!fs::is_directory(fs::path(dir) / "model", error)) {
    return absl::NotFoundError(
        absl::StrCat(dir, " is no fixture folder: it has no folder model"));
  }
  Golden golden;
  golden.dir = dir;
  const std::string forward = dir + "/forward.safetensors";
  {
    CADRE_ASSIGN_OR_RETURN(const SafetensorsFile file,
                           SafetensorsFile::Open(forward));
    CADRE_RETURN_IF_ERROR(ReadBatch(file, &golden));
  }
  CADRE_ASSIGN_OR_RETURN(golden.forward, ReadTensors(forward));
  if (fs::exists(dir + "/grads.safetensors", error)) {
    CADRE_ASSIGN_OR_RETURN(golden.grads,
                           ReadTensors(dir + "/grads.safetensors"));
  }
  CADRE_RETURN_IF_ERROR(ReadTrajectory(dir + "/trajectory.json", &golden));
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "lora_") && absl::EndsWith(name, "_init")) {
      golden.lora_runs.push_back(name.substr(5, name.size() - 10));
    }
  }
  std::sort(golden.lora_runs.begin(), golden.lora_runs.end());
  return golden;
}

}  // namespace cadre::parity
