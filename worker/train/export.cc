#include "worker/train/export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/checkpoint_writer.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "model/sha256.h"
#include "worker/checkpoint/file_digest.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/train/scratch_export.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

absl::StatusOr<ExpertLayout> ChooseLayout(const std::string& format,
                                          const PeftAdapter& adapter) {
  if (format == "peft_per_expert") return ExpertLayout::kPerExpert;
  if (format == "peft_fused") return ExpertLayout::kFused;
  if (!format.empty() && format != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("output.adapter_format is \"", format,
                     "\"; it must be auto, peft_per_expert or peft_fused"));
  }
  // What was imported goes back as it came.
  return adapter.config_json.empty() ? DefaultExpertLayout(adapter.plan)
                                     : adapter.layout;
}

absl::StatusOr<std::vector<float>> Values(const ExportSource& source,
                                          const std::string& name) {
  const Parameter* parameter = source.parameters->Find(name);
  if (parameter == nullptr) {
    return absl::InternalError(absl::StrCat("the model has no ", name));
  }
  int64_t n = 1;
  for (int64_t dim : parameter->global_shape) n *= dim;
  std::vector<float> values(n);
  CADRE_RETURN_IF_ERROR(
      source.gather->Fetch(*parameter, 0, absl::MakeSpan(values)));
  return values;
}

// Reads the folder back and compares every value.
absl::Status CheckAdapter(const PeftAdapter& written, const ModelSpec& spec,
                          const std::string& dir) {
  CADRE_ASSIGN_OR_RETURN(const PeftAdapter expected,
                         ConvertExpertLayout(written, written.layout));
  CADRE_ASSIGN_OR_RETURN(const PeftAdapter found, ReadPeftAdapter(dir, spec));
  std::map<std::string, const AdapterWeights*> by_path;
  for (size_t i = 0; i < found.plan.modules.size(); ++i) {
    by_path[found.plan.modules[i].path] = &found.weights[i];
  }
  const auto same = [](const std::vector<float>& a,
                       const std::vector<float>& b) {
    return a.size() == b.size() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  for (size_t i = 0; i < expected.plan.modules.size(); ++i) {
    const std::string& path = expected.plan.modules[i].path;
    const auto at = by_path.find(path);
    if (at == by_path.end() || !same(at->second->a, expected.weights[i].a) ||
        !same(at->second->b, expected.weights[i].b)) {
      return absl::DataLossError(absl::StrCat(
          "the adapter written to ", dir, " does not read back: ", path,
          at == by_path.end() ? " is missing" : " has other values"));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAdapter(const TrainerOptions& options,
                          const TrainerInputs& inputs,
                          const ExportSource& source, const std::string& dir,
                          ordered_json* manifest) {
  PeftAdapter adapter = *inputs.adapter;
  CADRE_ASSIGN_OR_RETURN(adapter.layout,
                         ChooseLayout(options.output.adapter_format, adapter));
  // Rounding to a narrower file would lose what was trained.
  adapter.dtype = DType::kF32;
  adapter.weights.clear();
  int64_t num_experts = 0;
  for (const LoraModule& module : adapter.plan.modules) {
    AdapterWeights weights;
    CADRE_ASSIGN_OR_RETURN(weights.a, Values(source, module.a_name()));
    CADRE_ASSIGN_OR_RETURN(weights.b, Values(source, module.b_name()));
    adapter.weights.push_back(std::move(weights));
    num_experts = std::max(num_experts, module.num_experts);
  }
  const ModelSpec& spec = inputs.model->spec();
  CADRE_RETURN_IF_ERROR(WritePeftAdapter(adapter, spec, dir));
  (*manifest)["expert_layout"] =
      adapter.layout == ExpertLayout::kFused ? "fused" : "per_expert";
  (*manifest)["num_experts"] = num_experts;
  (*manifest)["lora_rank"] = adapter.plan.rank;
  (*manifest)["lora_alpha"] = adapter.plan.alpha;
  (*manifest)["rank_stabilized"] = adapter.plan.rslora;
  return CheckAdapter(adapter, spec, dir);
}

absl::Status WriteFull(const TrainerOptions& options,
                       const TrainerInputs& inputs, const ExportSource& from,
                       const std::string& dir) {
  const TensorSource source = [&from](const LogicalTensor& tensor,
                                      int64_t begin, int64_t end,
                                      absl::Span<float> out) -> absl::Status {
    const Parameter* parameter = from.parameters->Find(tensor.name);
    if (parameter == nullptr) {
      return absl::InternalError(
          absl::StrCat("the model has no ", tensor.name));
    }
    int64_t width = 1;
    for (size_t i = 1; i < parameter->global_shape.size(); ++i) {
      width *= parameter->global_shape[i];
    }
    if ((end - begin) * width != static_cast<int64_t>(out.size())) {
      return absl::InternalError(
          absl::StrCat(tensor.name, ": rows ", begin, " to ", end, " of ",
                       width, " elements for ", out.size(), " elements"));
    }
    return from.gather->Fetch(*parameter, begin * width, out);
  };
  if (inputs.base == nullptr) {
    CADRE_RETURN_IF_ERROR(WriteScratchCheckpoint(
        inputs.model->spec(), inputs.config_json,
        options.model.tokenizer.empty() ? options.model.path
                                        : options.model.tokenizer,
        source, dir));
  } else {
    CADRE_RETURN_IF_ERROR(
        WriteCheckpoint(*inputs.base, source, dir, {.dtype = DType::kF32}));
  }
  // Opening checks names, shapes and that no byte is missing.
  return Annotate(ModelDir::Open(dir).status(),
                  "reading back the checkpoint that was written");
}

// What may be replaced: nothing, an empty folder, a result of the same job.
absl::Status CheckReplaceable(const std::string& dir, const std::string& job) {
  std::error_code error;
  if (!fs::exists(dir, error)) return absl::OkStatus();
  if (fs::is_directory(dir, error) && fs::is_empty(dir, error)) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(dir, "/", kResultManifest));
  if (text.ok()) {
    const ordered_json j = ordered_json::parse(*text, nullptr, false);
    if (j.is_object() && j.contains("job") && j["job"] == job) {
      return absl::OkStatus();
    }
  }
  return absl::AlreadyExistsError(
      absl::StrCat("output.dir ", dir, " holds something that ", job,
                   " has not written; choose another folder or remove it"));
}

absl::Status Failed(const char* action, const std::string& path,
                    const std::error_code& error) {
  return FileError(action, path, error.value());
}

// Moves `from` to `to`; what was there goes only once the new result stands.
absl::Status Replace(const std::string& from, const std::string& to) {
  std::error_code error;
  const std::string old = to + ".old";
  fs::remove_all(old, error);
  if (fs::exists(to, error)) {
    fs::rename(to, old, error);
    if (error) return Failed("move away", to, error);
  }
  fs::rename(from, to, error);
  if (error) return Failed("rename to", to, error);
  fs::remove_all(old, error);
  return absl::OkStatus();
}

absl::StatusOr<ExportedArtifact> Seal(const TrainerOptions& options,
                                      const std::string& dir,
                                      ordered_json manifest) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    names.push_back(entry.path().filename().string());
  }
  if (error) return Failed("list", dir, error);
  std::sort(names.begin(), names.end());
  ExportedArtifact artifact;
  manifest["files"] = ordered_json::array();
  for (const std::string& name : names) {
    CADRE_ASSIGN_OR_RETURN(const CheckpointFile file, DigestFile(dir, name));
    artifact.bytes += file.bytes;
    manifest["files"].push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  const std::string text = manifest.dump(1) + "\n";
  CADRE_RETURN_IF_ERROR(
      WriteFileAtomic(absl::StrCat(dir, "/", kResultManifest), text));
  artifact.bytes += static_cast<int64_t>(text.size());
  Sha256 sha;
  sha.Update(text);
  artifact.manifest_sha256 = sha.HexDigest();
  artifact.dir = options.output.dir;
  return artifact;
}

}  // namespace

absl::StatusOr<ExportedArtifact> ExportResult(const TrainerOptions& options,
                                              const TrainerInputs& inputs,
                                              const ExportSource& source,
                                              int64_t step) {
  fs::path target = fs::path(options.output.dir).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  const std::string dir = target.string();
  CADRE_RETURN_IF_ERROR(CheckReplaceable(dir, options.job));
  const std::string temporary =
      absl::StrCat(dir, ".attempt-", options.attempt_epoch, ".tmp");
  std::error_code error;
  fs::remove_all(temporary, error);
  if (target.has_parent_path()) {
    fs::create_directories(target.parent_path(), error);
    if (error) return Failed("create", target.parent_path().string(), error);
  }
  const bool lora = options.tuning.method == TuningOptions::Method::kLora;
  ordered_json manifest;
  manifest["format_version"] = 1;
  manifest["kind"] = lora ? "adapter" : "checkpoint";
  manifest["job"] = options.job;
  manifest["attempt_epoch"] = options.attempt_epoch;
  manifest["step"] = step;
  manifest["base_model"] = options.model.path;
  manifest["base_revision"] = options.model.revision;
  manifest["base_fingerprint"] = inputs.base_fingerprint;
  const absl::Status written =
      lora ? WriteAdapter(options, inputs, source, temporary, &manifest)
           : WriteFull(options, inputs, source, temporary);
  absl::StatusOr<ExportedArtifact> artifact =
      written.ok() ? Seal(options, temporary, std::move(manifest))
                   : absl::StatusOr<ExportedArtifact>(written);
  if (artifact.ok()) {
    if (absl::Status moved = Replace(temporary, dir); !moved.ok()) {
      artifact = moved;
    }
  }
  if (!artifact.ok()) {
    fs::remove_all(temporary, error);
    return Annotate(artifact.status(),
                    absl::StrCat("exporting the result to ", dir));
  }
  artifact->kind = lora ? "adapter" : "checkpoint";
  artifact->dir = dir;
  return artifact;
}

}  // namespace cadre
