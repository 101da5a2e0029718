// cadre export --merge: a base and an adapter become one checkpoint.

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "model/adapter_merge.h"
#include "model/checkpoint_writer.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"

namespace cadre::client {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::optional<DType>> ParseDType(const std::string& name) {
  if (name == "same") return std::nullopt;
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype is \"", name, "\"; it must be f32, bf16 or same"));
}

// The result of a job says which base it was trained on.
absl::Status CheckBase(const ModelDir& base, const std::string& adapter_dir) {
  const absl::StatusOr<std::string> text =
      ReadFile(adapter_dir + "/cadre_manifest.json");
  if (!text.ok()) return absl::OkStatus();
  const absl::StatusOr<Json> manifest = ParseJson(*text);
  if (!manifest.ok() || !manifest->is_object()) return absl::OkStatus();
  const Json* trained_on = manifest->Find("base_fingerprint");
  if (trained_on == nullptr || !trained_on->is_string() ||
      trained_on->string_value() == base.Fingerprint()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the adapter ", adapter_dir, " was trained on a base with fingerprint ",
      trained_on->string_value(), ", ", base.path(), " has ",
      base.Fingerprint(),
      "; give the base of the job, or --any-base if they are the same model "
      "in other files"));
}

struct Merged {
  int64_t adapted = 0, tensors = 0, bytes = 0;
};

absl::StatusOr<Merged> Merge(const Context& context, const ExportArgs& args) {
  CheckpointOptions options;
  CADRE_ASSIGN_OR_RETURN(options.dtype, ParseDType(args.dtype));
  std::error_code error;
  if (fs::exists(args.output, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        args.output, " exists; a checkpoint is written to a new folder"));
  }
  CADRE_ASSIGN_OR_RETURN(const ModelDir base, ModelDir::Open(args.base));
  CADRE_ASSIGN_OR_RETURN(PeftAdapter adapter,
                         ReadPeftAdapter(args.adapter, base.spec()));
  if (!args.any_base) CADRE_RETURN_IF_ERROR(CheckBase(base, args.adapter));
  if (!adapter.skipped.empty()) {
    context.Note(absl::StrCat(
        "warning: ", adapter.skipped.size(), " tensors of ", args.adapter,
        " belong to modules that Cadre does not read (",
        adapter.skipped.front().name,
        ", ...); they are not merged, those modules stay as in the base\n"));
  }
  CADRE_ASSIGN_OR_RETURN(const AdapterMerge merge,
                         AdapterMerge::Create(base, std::move(adapter)));
  CADRE_RETURN_IF_ERROR(
      WriteCheckpoint(base, merge.Source(), args.output, options));
  // Opening checks names, shapes and that no byte is missing.
  absl::StatusOr<ModelDir> written = ModelDir::Open(args.output);
  if (!written.ok()) {
    return Annotate(written.status(), "reading back what was written");
  }
  Merged merged;
  merged.adapted = merge.num_adapted_tensors();
  merged.tensors = static_cast<int64_t>(written->tensors().size());
  for (const auto& [dtype, bytes] : written->BytesByDType()) {
    merged.bytes += bytes;
  }
  return merged;
}

}  // namespace

int Export(const Context& context, const ExportArgs& args) {
  const absl::StatusOr<Merged> merged = Merge(context, args);
  if (!merged.ok()) return context.Fail(merged.status());
  if (context.json) {
    context.Print(WriteJson(Json::Object({
                      {"dir", Json::String(args.output), 0},
                      {"tensors", Json::Int(merged->tensors), 0},
                      {"adapted_tensors", Json::Int(merged->adapted), 0},
                      {"bytes", Json::Int(merged->bytes), 0},
                  })) +
                  "\n");
  } else {
    context.Print(absl::StrFormat(
        "wrote %s: %d of %d tensors adapted, %d bytes\n", args.output,
        merged->adapted, merged->tensors, merged->bytes));
  }
  return kOk;
}

}  // namespace cadre::client
