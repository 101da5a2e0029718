// The limits of every field by itself, in the order of the job file.

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "plan/checker.h"

namespace cadre {
namespace {

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
  const v1::ParallelismSpec& parallelism = spec.parallelism();
  check.Range<int32_t>("parallelism.replayed_blocks",
                       parallelism.replayed_blocks(), 0, 10'000);
  if (parallelism.has_replayed_blocks() &&
      parallelism.has_activation_checkpointing() &&
      parallelism.activation_checkpointing() !=
          (parallelism.replayed_blocks() > 0)) {
    check.Error(
        "parallelism.replayed_blocks",
        absl::StrCat(parallelism.replayed_blocks(),
                     " with activation_checkpointing: ",
                     parallelism.activation_checkpointing() ? "true" : "false"),
        "remove one of the two");
  }
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
  check.OneOf("moe.placement", moe.placement(),
              {"contiguous", "greedy", "eplb"});
  check.Range("moe.rebalance_min_gain", moe.rebalance_min_gain(), 0.0, 1.0);
  if (moe.placement() == "contiguous" && moe.rebalance() == "auto") {
    check.Error(
        "moe.rebalance",
        "auto moves experts, which placement: contiguous keeps in order",
        "write off, or use placement: eplb or greedy");
  }
  if (moe.spare_slots_per_rank() > 0 && moe.placement() != "eplb") {
    check.Error(
        "moe.spare_slots_per_rank",
        absl::StrCat(moe.spare_slots_per_rank(),
                     " would stay empty with placement: ", moe.placement()),
        "write 0 or remove it, or use placement: eplb");
  }

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

}  // namespace

void CheckLimits(const v1::JobSpec& spec, const v1::JobSpec& sent,
                 const ValidateOptions& options, Checker& check) {
  CheckHead(spec, check);
  CheckModelAndData(spec, options, check);
  CheckTuning(spec, check);
  CheckTraining(spec, sent, check);
  CheckRest(spec, options, check);
}

}  // namespace cadre
