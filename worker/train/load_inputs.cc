#include "worker/train/load_inputs.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/encode.h"
#include "base/text/record.h"
#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "model/sha256.h"
#include "plan/mesh.h"
#include "worker/checkpoint/manifest.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"
#include "worker/model/parameter_values.h"
#include "worker/shard/model_layout.h"

namespace cadre {
namespace {

absl::StatusOr<PackedDatasetOptions> DatasetOptions(
    const TrainerOptions& options) {
  PackedDatasetOptions out;
  CADRE_ASSIGN_OR_RETURN(out.format, ParseDataFormat(options.data.format));
  CADRE_ASSIGN_OR_RETURN(out.encode.loss_on, ParseLossOn(options.data.loss_on));
  CADRE_ASSIGN_OR_RETURN(out.encode.too_long,
                         ParseTooLong(options.data.too_long));
  out.encode.max_seq_len = options.data.max_seq_len;
  out.packing = options.data.packing;
  out.shuffle = options.data.shuffle;
  out.seed = options.training.seed;
  out.global_batch_size = options.training.global_batch_size;
  out.micro_batch_size = options.training.micro_batch_size;
  out.rank = options.rank;
  out.num_ranks = options.mesh.world_size;
  return out;
}

absl::Status LoadData(const TrainerOptions& options, TrainObserver* observer,
                      TrainerInputs* inputs) {
  const int64_t total = options.data.eval.empty() ? 2 : 3;
  observer->OnPreparing("data", 0, total);
  const std::string& folder = options.model.tokenizer.empty()
                                  ? options.model.path
                                  : options.model.tokenizer;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<const TextEncoder> encoder,
                         TextEncoder::Load(folder));
  observer->OnPreparing("data", 1, total);
  CADRE_ASSIGN_OR_RETURN(const PackedDatasetOptions dataset,
                         DatasetOptions(options));
  CADRE_ASSIGN_OR_RETURN(inputs->train, PackedDataset::Load(options.data.train,
                                                            *encoder, dataset));
  observer->OnPreparing("data", 2, total);
  if (options.data.eval.empty()) return absl::OkStatus();
  CADRE_ASSIGN_OR_RETURN(
      inputs->eval, PackedDataset::Load(options.data.eval, *encoder, dataset));
  observer->OnPreparing("data", 3, total);
  return absl::OkStatus();
}

// The base's configuration and, unless it starts at random, its folder.
absl::StatusOr<ModelSpec> OpenBase(const TrainerOptions& options,
                                   TrainerInputs* inputs) {
  const TrainModelOptions& model = options.model;
  if (!model.random_init) {
    CADRE_ASSIGN_OR_RETURN(ModelDir dir, ModelDir::Open(model.path));
    inputs->base = std::make_unique<ModelDir>(std::move(dir));
    inputs->base_fingerprint = inputs->base->Fingerprint();
    inputs->config_json = inputs->base->config_json();
    return inputs->base->spec();
  }
  const std::string path =
      model.config.empty() ? model.path + "/config.json" : model.config;
  CADRE_ASSIGN_OR_RETURN(inputs->config_json, ReadFile(path));
  absl::StatusOr<ModelSpec> spec = ParseModelSpec(inputs->config_json);
  if (!spec.ok()) return Annotate(spec.status(), path);
  Sha256 sha;
  sha.Update(inputs->config_json);
  inputs->base_fingerprint =
      absl::StrCat("random-", options.training.seed, "-", sha.HexDigest());
  return spec;
}

absl::StatusOr<std::unique_ptr<PeftAdapter>> MakeAdapter(
    const TrainerOptions& options, const ModelSpec& spec,
    TrainObserver* observer) {
  const TuningOptions& tuning = options.tuning;
  PeftAdapter adapter;
  if (!options.model.init_adapter.empty()) {
    CADRE_ASSIGN_OR_RETURN(adapter,
                           ReadPeftAdapter(options.model.init_adapter, spec));
    observer->OnEvent(
        "ADAPTER_IMPORTED",
        absl::StrCat(options.model.init_adapter, ": ",
                     adapter.plan.modules.size(),
                     " modules; its targets, rank and alpha count, those of "
                     "the job do not"));
    if (!adapter.skipped.empty()) {
      observer->OnEvent("ADAPTER_SKIPPED",
                        absl::StrCat(adapter.skipped.size(),
                                     " tensors of modules that are not "
                                     "trained are kept as they are"));
    }
  } else {
    CADRE_ASSIGN_OR_RETURN(
        adapter.plan,
        PlanLora(spec, {.rank = tuning.lora_rank,
                        .alpha = tuning.lora_alpha,
                        .rslora = tuning.rank_stabilized,
                        .dropout = tuning.lora_dropout,
                        .shared_gate_up = tuning.shared_experts_adapter,
                        .targets = tuning.lora_target_modules}));
    adapter.base_model_name_or_path = options.model.path;
    adapter.revision = options.model.revision;
    for (const std::string& warning : adapter.plan.warnings) {
      observer->OnEvent("ADAPTER_TARGETS", warning);
    }
  }
  adapter.plan.dropout = tuning.lora_dropout;
  return std::make_unique<PeftAdapter>(std::move(adapter));
}

absl::Status CopyTo(const Exec& exec, ParameterRegistry& parameters,
                    const std::string& name, const std::vector<float>& values) {
  Parameter* parameter = parameters.Find(name);
  int64_t expected = 1;
  if (parameter != nullptr) {
    for (int64_t dim : parameter->global_shape) expected *= dim;
  }
  if (parameter == nullptr || expected != static_cast<int64_t>(values.size())) {
    return absl::InternalError(absl::StrCat(
        "adapter tensor ", name, " of ", values.size(),
        " elements does not fit the model's ",
        parameter == nullptr ? "nothing" : parameter->value.DebugString()));
  }
  return WriteHeldPart(exec, values, parameter);
}

// Where the experts lie at the first step; null: in order. A placement of a
// checkpoint that cannot be read or does not fit is no reason to fail: any
// placement trains the same, and resuming says what is wrong with the rest.
std::shared_ptr<const ExpertPlacement> FirstPlacement(
    const TrainerOptions& options, const PlacementShape& shape) {
  if (options.moe.placement != nullptr || shape.num_layers == 0 ||
      options.checkpoint.resume_path.empty()) {
    return options.moe.placement;
  }
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(
      options.checkpoint.resume_path, "/", CheckpointManifest::kFileName));
  if (!text.ok()) return nullptr;
  absl::StatusOr<CheckpointManifest> manifest =
      CheckpointManifest::Parse(*text);
  if (!manifest.ok() || !manifest->placement.has_value() ||
      !(manifest->placement->shape == shape)) {
    return nullptr;
  }
  return std::make_shared<ExpertPlacement>(*std::move(manifest->placement));
}

absl::Status LoadModel(const TrainerOptions& options, const Exec& exec,
                       TrainObserver* observer, TrainerInputs* inputs) {
  observer->OnPreparing("model", 0, 2);
  CADRE_ASSIGN_OR_RETURN(const ModelSpec spec, OpenBase(options, inputs));
  for (const std::string& warning : spec.warnings) {
    observer->OnEvent("MODEL_CONFIG", warning);
  }
  if (spec.max_positions > 0 && options.data.max_seq_len > spec.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.max_seq_len is ", options.data.max_seq_len,
                     ", the model reaches ", spec.max_positions, " positions"));
  }
  ModelOptions model_options;
  model_options.exec = exec;
  if (exec.backend == Backend::kCuda && options.model.dtype != "fp32") {
    model_options.dtype = DType::kBF16;
  }
  // A GPU computes while a thread of the host waits for the exchanges.
  model_options.overlap_dispatch = exec.backend == Backend::kCuda;
  model_options.replayed_blocks = options.model.replayed_blocks;
  model_options.pass_tokens =
      options.data.max_seq_len * options.training.micro_batch_size;
  model_options.nvtx = options.nvtx;
  model_options.dropout_seed = options.training.seed;
  model_options.moe = {.overflow = options.moe.overflow,
                       .capacity_factor = options.moe.capacity_factor,
                       .aux_loss_coef = options.moe.aux_loss_coef,
                       .z_loss_coef = options.moe.z_loss_coef};
  CADRE_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(options.mesh));
  const std::shared_ptr<const ExpertPlacement> placement = FirstPlacement(
      options, ExpertSlots(spec, mesh, options.moe.spare_slots_per_rank));
  CADRE_RETURN_IF_ERROR(
      PlaceModel(spec, mesh, options.rank, &model_options,
                 {.spare_slots_per_rank = options.moe.spare_slots_per_rank,
                  .placement = placement.get()}));
  if (options.tuning.method == TuningOptions::Method::kLora) {
    CADRE_ASSIGN_OR_RETURN(inputs->adapter,
                           MakeAdapter(options, spec, observer));
    model_options.lora = inputs->adapter->plan;
  } else if (!options.model.init_adapter.empty()) {
    return absl::InvalidArgumentError(
        "model.adapter is set with tuning.method: full; an adapter can only "
        "be continued with tuning.method: lora");
  }
  CADRE_ASSIGN_OR_RETURN(inputs->model,
                         Model::Create(spec, std::move(model_options)));
  observer->OnPreparing("model", 1, 2);
  if (inputs->base != nullptr) {
    CADRE_RETURN_IF_ERROR(inputs->model->LoadWeights(*inputs->base));
  } else {
    CADRE_RETURN_IF_ERROR(inputs->model->InitWeights(options.training.seed));
  }
  if (inputs->adapter != nullptr) {
    if (inputs->adapter->weights.empty()) {
      CADRE_RETURN_IF_ERROR(inputs->model->InitAdapter(options.training.seed));
    }
    ParameterRegistry& parameters = inputs->model->parameters();
    for (size_t i = 0; i < inputs->adapter->weights.size(); ++i) {
      const LoraModule& module = inputs->adapter->plan.modules[i];
      const AdapterWeights& weights = inputs->adapter->weights[i];
      CADRE_RETURN_IF_ERROR(
          CopyTo(exec, parameters, module.a_name(), weights.a));
      CADRE_RETURN_IF_ERROR(
          CopyTo(exec, parameters, module.b_name(), weights.b));
    }
    // The model holds them now.
    inputs->adapter->weights.clear();
  }
  observer->OnPreparing("model", 2, 2);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainerInputs> LoadTrainerInputs(const TrainerOptions& options,
                                                const Exec& exec,
                                                TrainObserver* observer) {
  TrainerInputs inputs;
  inputs.exec = exec;
  CADRE_RETURN_IF_ERROR(LoadData(options, observer, &inputs));
  CADRE_RETURN_IF_ERROR(LoadModel(options, exec, observer, &inputs));
  return inputs;
}

}  // namespace cadre
