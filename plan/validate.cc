#include "plan/validate.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "model/lora_targets.h"
#include "plan/mesh.h"

namespace cadre {
namespace {

using v1::Diagnostic;

// Collects findings; each check names the field, the value and the limit.
class Checker {
 public:
  explicit Checker(v1::Diagnostics* out) : out_(out) {}

  void Error(const std::string& field, const std::string& message,
             const std::string& hint = "") {
    Add(Diagnostic::SEVERITY_ERROR, field, message, hint);
  }
  void Warn(const std::string& field, const std::string& message) {
    Add(Diagnostic::SEVERITY_WARNING, field, message, "");
  }
  template <typename T>
  void Range(const std::string& field, T value, T low, T high) {
    if (value >= low && value <= high) return;
    Error(field, absl::StrCat(value, " is outside ", low, " - ", high));
  }
  // low < value <= high.
  void Above(const std::string& field, double value, double low, double high) {
    if (value > low && value <= high) return;
    Error(field,
          absl::StrCat(value, " must be above ", low, " and at most ", high));
  }
  // 0 <= value < 1.
  void BelowOne(const std::string& field, double value) {
    if (value >= 0 && value < 1) return;
    Error(field, absl::StrCat(value, " must be at least 0 and below 1"));
  }
  void OneOf(const std::string& field, const std::string& value,
             std::initializer_list<const char*> choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) {
      return;
    }
    Error(field, absl::StrCat("'", value, "' is not one of ",
                              absl::StrJoin(choices, ", ")));
  }
  void Duration(const std::string& field, const std::string& value,
                absl::Duration least) {
    absl::Duration duration;
    if (!absl::ParseDuration(value, &duration)) {
      Error(field, absl::StrCat("'", value, "' is not a duration"),
            "write for example 90s, 15m or 36h");
    } else if (duration < least) {
      Error(field,
            absl::StrCat(value, " is below ", absl::FormatDuration(least)));
    }
  }
  void Path(const std::string& field, const std::string& path,
            const ValidateOptions& options) {
    if (path.empty()) return;
    if (path[0] != '/') {
      Error(field,
            absl::StrCat("'", path, "' is relative, and the request names no ",
                         "folder to start from"),
            "write an absolute path");
      return;
    }
    for (absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") {
        Error(field, absl::StrCat("'", path, "' contains '..'"),
              "write the path without it");
        return;
      }
    }
    const auto below = [&path](const std::string& root) {
      return path == root || absl::StartsWith(path, absl::StrCat(root, "/"));
    };
    if (!options.allowed_roots.empty() &&
        std::none_of(options.allowed_roots.begin(), options.allowed_roots.end(),
                     below)) {
      Error(field, absl::StrCat("'", path, "' is outside the folders that the ",
                                "coordinator allows: ",
                                absl::StrJoin(options.allowed_roots, ", ")));
    }
  }

 private:
  void Add(Diagnostic::Severity severity, const std::string& field,
           const std::string& message, const std::string& hint) {
    Diagnostic* item = out_->add_items();
    item->set_severity(severity);
    item->set_field(field);
    item->set_message(message);
    item->set_hint(hint);
    out_->set_total(out_->total() + 1);
  }
  v1::Diagnostics* const out_;
};

bool IsId(const std::string& text, size_t least) {
  return text.size() >= least && text.size() <= 63 &&
         absl::ascii_islower(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

void CheckHead(const v1::JobSpec& spec, Checker& check) {
  if (spec.version() != 1) {
    check.Error("version",
                absl::StrCat(spec.version(), " is not a known version"),
                "write version: 1");
  }
  if (!spec.name().empty() && !IsId(spec.name(), 2)) {
    check.Error("name", absl::StrCat("'", spec.name(), "' is not a job name"),
                "use 2-63 of a-z, 0-9 and -, first a letter");
  }
  check.Range("priority", spec.priority(), 0, 100);
  if (!spec.max_runtime().empty()) {
    check.Duration("max_runtime", spec.max_runtime(), absl::Minutes(1));
  }
  if (spec.labels_size() > 16) {
    check.Error("labels", absl::StrCat(spec.labels_size(),
                                       " labels; at most 16 are allowed"));
  }
  for (const auto& [key, value] : spec.labels()) {
    if (key.empty() || key.size() > 63 || value.size() > 255) {
      check.Error("labels", absl::StrCat("'", key, "': a key has 1-63 and a ",
                                         "value up to 255 characters"));
    }
  }
}

void CheckModelAndData(const v1::JobSpec& spec, const ValidateOptions& options,
                       Checker& check) {
  const v1::ModelSpec& model = spec.model();
  check.OneOf("model.init", model.init(), {"", "random"});
  if (model.path().empty() && model.config().empty()) {
    check.Error("model.path", "is required",
                "name the folder with config.json and the weights");
  }
  if (!model.config().empty() && model.init() != "random") {
    check.Error("model.config",
                "is only for models that start from random "
                "weights",
                "add init: random, or name the weights with model.path");
  }
  check.OneOf("model.dtype", model.dtype(), {"bf16", "fp32"});
  check.Path("model.path", model.path(), options);
  check.Path("model.config", model.config(), options);
  check.Path("model.adapter", model.adapter(), options);
  check.Path("model.tokenizer", model.tokenizer(), options);

  const v1::DataSpec& data = spec.data();
  if (data.train().empty()) {
    check.Error("data.train", "is required", "name 1-64 JSONL files or globs");
  }
  for (const auto* paths : {&data.train(), &data.eval()}) {
    const std::string field =
        paths == &data.train() ? "data.train" : "data.eval";
    if (paths->size() > 64) {
      check.Error(field, absl::StrCat(paths->size(),
                                      " entries; at most 64 are "
                                      "allowed"));
    }
    for (int i = 0; i < paths->size(); ++i) {
      const std::string item = absl::StrCat(field, "[", i, "]");
      if ((*paths)[i].empty()) check.Error(item, "is empty");
      check.Path(item, (*paths)[i], options);
    }
  }
  check.OneOf("data.format", data.format(),
              {"auto", "chat", "prompt_completion", "text"});
  check.Range<int64_t>("data.max_seq_len", data.max_seq_len(), 16, 1048576);
  check.OneOf("data.too_long", data.too_long(), {"truncate", "drop", "error"});
  check.OneOf("data.loss_on", data.loss_on(),
              {"assistant", "completion", "all"});
}

void CheckTuning(const v1::JobSpec& spec, Checker& check) {
  const v1::TuningSpec& tuning = spec.tuning();
  check.OneOf("tuning.method", tuning.method(), {"lora", "full"});
  if (tuning.method() == "full") {
    if (tuning.has_lora_rank() || tuning.has_lora_alpha() ||
        tuning.has_lora_dropout() || !tuning.lora_target_modules().empty() ||
        !tuning.lora_scaling().empty() ||
        !tuning.lora_expert_layout().empty()) {
      check.Error("tuning", "lora_* options have no meaning with method: full",
                  "remove them, or write method: lora");
    }
    return;
  }
  check.Range<int32_t>("tuning.lora_rank", tuning.lora_rank(), 1, 512);
  // A default that follows from a wrong rank is not worth a second error.
  const bool derived =
      tuning.lora_rank() < 1 && tuning.lora_alpha() == 2.0 * tuning.lora_rank();
  if (tuning.lora_alpha() <= 0 && !derived) {
    check.Error("tuning.lora_alpha",
                absl::StrCat(tuning.lora_alpha(), " must be above 0"));
  }
  check.BelowOne("tuning.lora_dropout", tuning.lora_dropout());
  if (tuning.lora_target_modules_size() > 64) {
    check.Error("tuning.lora_target_modules",
                absl::StrCat(tuning.lora_target_modules_size(),
                             " entries; at most 64 are allowed"));
  }
  check.OneOf("tuning.lora_scaling", tuning.lora_scaling(),
              {"standard", "rank_stabilized"});
  check.OneOf("tuning.lora_expert_layout", tuning.lora_expert_layout(),
              {"per_expert", "shared"});
}

void CheckTraining(const v1::JobSpec& spec, const v1::JobSpec& sent,
                   Checker& check) {
  const v1::TrainingSpec& training = spec.training();
  if (sent.training().has_epochs() && sent.training().has_max_steps()) {
    check.Error("training.max_steps", "training.epochs is set too",
                "keep one of the two");
  }
  if (training.has_epochs()) {
    check.Above("training.epochs", training.epochs(), 0, 1000);
  }
  if (training.has_max_steps()) {
    check.Range<int64_t>("training.max_steps", training.max_steps(), 1,
                         10'000'000);
  }
  check.Range<int32_t>("training.global_batch_size",
                       training.global_batch_size(), 1, 1 << 20);
  if (training.has_micro_batch_size()) {
    check.Range<int32_t>("training.micro_batch_size",
                         training.micro_batch_size(), 1, 1 << 20);
  }
  check.Above("training.learning_rate", training.learning_rate(), 0, 1);
  check.OneOf("training.schedule", training.schedule(),
              {"constant", "linear", "cosine"});
  check.Range("training.warmup_ratio", training.warmup_ratio(), 0.0, 0.5);
  check.Range("training.min_lr_ratio", training.min_lr_ratio(), 0.0, 1.0);
  check.Range("training.weight_decay", training.weight_decay(), 0.0, 1000.0);
  check.BelowOne("training.beta1", training.beta1());
  check.BelowOne("training.beta2", training.beta2());
  check.Above("training.epsilon", training.epsilon(), 0, 1);
  check.Range("training.max_grad_norm", training.max_grad_norm(), 0.0, 1e9);
  check.OneOf("training.reduce_dtype", training.reduce_dtype(),
              {"fp32", "bf16"});
  check.Range<int32_t>("training.max_nonfinite_steps",
                       training.max_nonfinite_steps(), 0, 1'000'000);
  check.Range<int64_t>("training.eval_every", training.eval_every(), 0,
                       10'000'000);
  check.Range<int64_t>("training.log_every", training.log_every(), 1,
                       10'000'000);
}

void CheckRest(const v1::JobSpec& spec, const ValidateOptions& options,
               Checker& check) {
  const v1::MoeSpec& moe = spec.moe();
  check.OneOf("moe.overflow_policy", moe.overflow_policy(),
              {"dropless", "drop_by_weight", "drop_by_position", "remap"});
  if (moe.has_capacity_factor()) {
    if (moe.overflow_policy() == "dropless") {
      check.Error("moe.capacity_factor",
                  "has no meaning with overflow_policy: dropless", "remove it");
    }
    check.Range("moe.capacity_factor", moe.capacity_factor(), 1.0, 8.0);
  }
  check.Range("moe.aux_loss_coef", moe.aux_loss_coef(), 0.0, 1.0);
  check.Range("moe.z_loss_coef", moe.z_loss_coef(), 0.0, 1.0);
  if (moe.bias_update_rate() > 0 && spec.tuning().method() != "full") {
    check.Error("moe.bias_update_rate",
                "moves the base model, which an adapter must not",
                "remove it, or use method: full");
  }
  check.OneOf("moe.rebalance", moe.rebalance(), {"off", "auto"});
  check.Range<int32_t>("moe.rebalance_every", moe.rebalance_every(), 1,
                       1'000'000);
  check.Range<int32_t>("moe.spare_slots_per_rank", moe.spare_slots_per_rank(),
                       0, 8);

  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  check.Duration("checkpoint.every", checkpoint.every(), absl::Seconds(1));
  check.Range<int64_t>("checkpoint.every_steps", checkpoint.every_steps(), 0,
                       10'000'000);
  check.Range<int32_t>("checkpoint.keep_last", checkpoint.keep_last(), 1, 100);
  check.Range<int64_t>("checkpoint.keep_every_steps",
                       checkpoint.keep_every_steps(), 0, 10'000'000);
  if (!absl::StartsWith(checkpoint.resume_from(), "jobs/")) {
    check.Path("checkpoint.resume_from", checkpoint.resume_from(), options);
  }
  check.Path("output.dir", spec.output().dir(), options);
  check.OneOf("output.adapter_format", spec.output().adapter_format(),
              {"auto", "peft_per_expert", "peft_fused"});

  const v1::ResourcesSpec& resources = spec.resources();
  if (!resources.has_workers()) {
    check.Error("resources.workers", "is required", "write 1-1024");
  } else {
    check.Range<int32_t>("resources.workers", resources.workers(), 1, 1024);
    check.Range<int32_t>("resources.min_workers", resources.min_workers(), 1,
                         std::max(1, resources.workers()));
  }
  check.OneOf("resources.backend", resources.backend(), {"cuda", "cpu"});
  if (resources.has_max_link_domains()) {
    check.Range<int32_t>("resources.max_link_domains",
                         resources.max_link_domains(), 1, 1024);
  }
  if (resources.min_device_memory_bytes() < 0) {
    check.Error("resources.min_device_memory_bytes", "is negative");
  }
  if (resources.backend() == "cpu" && spec.model().dtype() == "bf16") {
    check.Error("model.dtype", "the cpu backend computes in fp32 only",
                "write dtype: fp32 or remove it");
  }
  for (const auto& [cause, budget] : spec.restarts()) {
    const std::string field = absl::StrCat("restarts.", cause);
    if (cause == "COMMUNICATION" || cause == "DEVICE_ERROR") {
      check.Error(field, "shares the budget of WORKER_LOST",
                  "set restarts.WORKER_LOST");
    } else {
      check.OneOf(
          field, cause,
          {"OUT_OF_MEMORY", "NUMERIC", "WORKER_LOST", "STORAGE", "INTERNAL"});
    }
    check.Range<int32_t>(field, budget, 0, 100);
  }
}

// What the job file can say but no worker of this release can do, in one place:
// each line goes when its feature lands.
void CheckReleased(const v1::JobSpec& spec, Checker& check) {
  const char kNotYet[] = "not supported by this release";
  const auto not_yet = [&](bool used, const std::string& field,
                           const std::string& value, const std::string& hint) {
    if (used) check.Error(field, absl::StrCat(value, " is ", kNotYet), hint);
  };
  const auto& parallelism = spec.parallelism();
  const auto& moe = spec.moe();
  not_yet(parallelism.has_fsdp_shard_group_size() &&
              parallelism.fsdp_shard_group_size() != 1,
          "parallelism.fsdp_shard_group_size",
          absl::StrCat(parallelism.fsdp_shard_group_size()),
          "every worker keeps a whole copy: write 1 or remove it");
  not_yet(parallelism.has_expert_parallel_size() &&
              parallelism.expert_parallel_size() != 1,
          "parallelism.expert_parallel_size",
          absl::StrCat(parallelism.expert_parallel_size()),
          "every worker keeps all experts: write 1 or remove it");
  not_yet(moe.overflow_policy() != "dropless", "moe.overflow_policy",
          moe.overflow_policy(), "use dropless");
  not_yet(moe.has_aux_loss_coef(), "moe.aux_loss_coef",
          "another value than the model's own", "remove it");
  not_yet(moe.z_loss_coef() > 0, "moe.z_loss_coef", "a z-loss", "remove it");
  not_yet(moe.bias_update_rate() > 0, "moe.bias_update_rate", "a bias update",
          "remove it");
  not_yet(moe.spare_slots_per_rank() > 0, "moe.spare_slots_per_rank",
          absl::StrCat(moe.spare_slots_per_rank()), "write 0 or remove it");
  not_yet(spec.training().reduce_dtype() != "fp32", "training.reduce_dtype",
          spec.training().reduce_dtype(), "use fp32");
  not_yet(spec.resources().min_workers() < spec.resources().workers(),
          "resources.min_workers", "going on with fewer workers",
          "remove it: a lost worker is replaced");
}

void CheckModelFit(const v1::JobSpec& spec, const ModelFacts& facts,
                   v1::Plan* plan, Checker& check) {
  const std::string place =
      spec.model().config().empty() ? "model.path" : "model.config";
  if (!facts.status.ok()) {
    check.Error(place, std::string(facts.status.message()));
  }
  // In a folder that is not there nothing else is missing.
  const bool told = !facts.status.ok() && spec.model().tokenizer().empty();
  if (!facts.has_tokenizer && !told &&
      !(facts.tokenizer_dir.empty() && spec.model().path().empty() &&
        spec.model().config().empty())) {
    check.Error(
        spec.model().tokenizer().empty() ? place : "model.tokenizer",
        facts.tokenizer_dir.empty()
            ? "the data needs a tokenizer"
            : absl::StrCat(facts.tokenizer_dir, " has no tokenizer.json"),
        "name its folder with model.tokenizer");
  }
  if (!facts.spec.has_value()) return;
  const ModelSpec& model = *facts.spec;
  plan->set_total_parameters(facts.total_parameters);
  plan->set_trainable_parameters(facts.total_parameters);
  if (model.max_positions > 0 &&
      spec.data().max_seq_len() > model.max_positions) {
    check.Error("data.max_seq_len",
                absl::StrCat(spec.data().max_seq_len(), " is above the ",
                             model.max_positions, " positions of the model"));
  }
  for (const std::string& warning : model.warnings) {
    check.Warn(place, warning);
  }
  // Wrong numbers were told of already; they hide no wrong target.
  if (spec.tuning().method() != "lora" || spec.tuning().lora_rank() < 1 ||
      spec.tuning().lora_alpha() <= 0 || spec.tuning().lora_dropout() < 0 ||
      spec.tuning().lora_dropout() >= 1) {
    return;
  }
  LoraOptions lora;
  lora.rank = spec.tuning().lora_rank();
  lora.alpha = spec.tuning().lora_alpha();
  lora.dropout = spec.tuning().lora_dropout();
  lora.rslora = spec.tuning().lora_scaling() == "rank_stabilized";
  lora.targets = {spec.tuning().lora_target_modules().begin(),
                  spec.tuning().lora_target_modules().end()};
  const auto lora_plan = PlanLora(model, lora);
  if (!lora_plan.ok()) {
    check.Error("tuning.lora_target_modules",
                std::string(lora_plan.status().message()));
    return;
  }
  plan->set_trainable_parameters(lora_plan->num_parameters());
  for (const LoraTargetMatch& match : lora_plan->matches) {
    v1::LoraMatch* out = plan->add_lora_matches();
    out->set_target(match.target);
    out->set_layer_kind(match.layer_kind);
    out->set_modules(static_cast<int32_t>(match.num_modules));
  }
  for (const std::string& warning : lora_plan->warnings) {
    check.Warn("tuning.lora_target_modules", warning);
    plan->add_warnings(warning);
  }
}

void MakePlan(const v1::JobSpec& spec, v1::Plan* plan, Checker& check) {
  const int world = spec.resources().workers();
  if (world < 1 || world > 1024) return;  // said already
  MeshSpec mesh_spec{.world_size = world};
  if (spec.parallelism().has_fsdp_shard_group_size()) {
    mesh_spec.fsdp_shard_group_size =
        spec.parallelism().fsdp_shard_group_size();
  }
  if (spec.parallelism().has_expert_parallel_size()) {
    mesh_spec.expert_parallel_size = spec.parallelism().expert_parallel_size();
  }
  const auto mesh = Mesh::Create(mesh_spec);
  if (!mesh.ok()) {
    check.Error("parallelism", std::string(mesh.status().message()));
    return;
  }
  plan->set_world_size(world);
  plan->set_dense_replicas(mesh->num_replicas());
  plan->set_fsdp_shard_group_size(mesh_spec.fsdp_shard_group_size);
  plan->set_expert_data_parallel_size(mesh->num_expert_replicas());
  plan->set_expert_parallel_size(mesh_spec.expert_parallel_size);
  plan->set_activation_checkpointing(
      spec.parallelism().activation_checkpointing());
  const int batch = spec.training().global_batch_size();
  if (batch < 1) return;  // said already
  if (batch % world != 0) {
    check.Error(
        "training.global_batch_size",
        absl::StrCat(batch, " rows do not divide over ", world, " workers"),
        absl::StrCat("use ", std::max(1, batch / world) * world, " or ",
                     (batch / world + 1) * world));
    return;
  }
  const int rows = batch / world;
  // Without a wish one row at a time: the least memory.
  const int micro = spec.training().has_micro_batch_size()
                        ? spec.training().micro_batch_size()
                        : 1;
  if (micro < 1) return;  // said already
  if (rows % micro != 0) {
    check.Error("training.micro_batch_size",
                absl::StrCat("the ", rows, " rows of each worker (", batch,
                             " over ", world,
                             " workers) are not a multiple "
                             "of ",
                             micro));
    return;
  }
  plan->set_micro_batch_size(micro);
  plan->set_accumulation_steps(rows / micro);
  plan->set_tokens_per_step(int64_t{batch} * spec.data().max_seq_len());
  if (spec.training().has_max_steps()) {
    plan->set_total_steps(spec.training().max_steps());
  }
}

}  // namespace

bool Validated::ok() const {
  return std::none_of(diagnostics.items().begin(), diagnostics.items().end(),
                      [](const Diagnostic& item) {
                        return item.severity() == Diagnostic::SEVERITY_ERROR;
                      });
}

Validated ValidateJob(const v1::JobSpec& spec, const ValidateOptions& options,
                      const ModelFacts* facts) {
  Validated out;
  out.spec = ResolveJob(spec, options.base_dir);
  Checker check(&out.diagnostics);
  CheckHead(out.spec, check);
  CheckModelAndData(out.spec, options, check);
  CheckTuning(out.spec, check);
  CheckTraining(out.spec, spec, check);
  CheckRest(out.spec, options, check);
  CheckReleased(out.spec, check);
  if (facts != nullptr) CheckModelFit(out.spec, *facts, &out.plan, check);
  MakePlan(out.spec, &out.plan, check);
  return out;
}

}  // namespace cadre
