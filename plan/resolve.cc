#include <algorithm>
#include <filesystem>

#include "plan/validate.h"

namespace cadre {
namespace {

std::string Absolute(const std::string& path, const std::string& base_dir) {
  if (path.empty() || path[0] == '/' || base_dir.empty()) return path;
  return (std::filesystem::path(base_dir) / path).lexically_normal().string();
}

void Default(std::string* field, const char* value) {
  if (field->empty()) *field = value;
}

}  // namespace

v1::JobSpec ResolveJob(const v1::JobSpec& in, const std::string& base_dir) {
  v1::JobSpec spec = in;
#define CADRE_DEFAULT(message, field, value) \
  if (!(message).has_##field()) (message).set_##field(value)
  CADRE_DEFAULT(spec, priority, 50);

  auto& resources = *spec.mutable_resources();
  Default(resources.mutable_backend(), "cuda");
  CADRE_DEFAULT(resources, min_workers, resources.workers());

  auto& model = *spec.mutable_model();
  Default(model.mutable_dtype(),
          resources.backend() == "cpu" ? "fp32" : "bf16");
  for (std::string* path :
       {model.mutable_path(), model.mutable_config(), model.mutable_adapter(),
        model.mutable_tokenizer()}) {
    *path = Absolute(*path, base_dir);
  }

  auto& data = *spec.mutable_data();
  for (std::string& path : *data.mutable_train()) {
    path = Absolute(path, base_dir);
  }
  for (std::string& path : *data.mutable_eval()) {
    path = Absolute(path, base_dir);
  }
  Default(data.mutable_format(), "auto");
  CADRE_DEFAULT(data, max_seq_len, 4096);
  Default(data.mutable_too_long(), "truncate");
  CADRE_DEFAULT(data, packing, true);
  CADRE_DEFAULT(data, shuffle, true);
  Default(data.mutable_loss_on(),
          data.format() == "text" ? "all" : "assistant");

  auto& tuning = *spec.mutable_tuning();
  Default(tuning.mutable_method(), "lora");
  if (tuning.method() == "lora") {
    CADRE_DEFAULT(tuning, lora_rank, 16);
    CADRE_DEFAULT(tuning, lora_alpha, 2.0 * tuning.lora_rank());
    CADRE_DEFAULT(tuning, lora_dropout, 0.0);
    if (tuning.lora_target_modules().empty()) {
      tuning.add_lora_target_modules("q_proj");
      tuning.add_lora_target_modules("v_proj");
    }
    Default(tuning.mutable_lora_scaling(), "standard");
    Default(tuning.mutable_lora_expert_layout(), "per_expert");
  }

  auto& training = *spec.mutable_training();
  if (!training.has_epochs() && !training.has_max_steps()) {
    training.set_epochs(1.0);
  }
  CADRE_DEFAULT(training, global_batch_size, 32);
  CADRE_DEFAULT(training, learning_rate,
                tuning.method() == "full" ? 1e-5 : 1e-4);
  Default(training.mutable_schedule(), "cosine");
  CADRE_DEFAULT(training, warmup_ratio, 0.03);
  CADRE_DEFAULT(training, min_lr_ratio, 0.1);
  CADRE_DEFAULT(training, weight_decay, 0.0);
  CADRE_DEFAULT(training, beta1, 0.9);
  CADRE_DEFAULT(training, beta2, 0.95);
  CADRE_DEFAULT(training, epsilon, 1e-8);
  CADRE_DEFAULT(training, max_grad_norm, 1.0);
  Default(training.mutable_reduce_dtype(), "fp32");
  CADRE_DEFAULT(training, seed, 1);
  CADRE_DEFAULT(training, deterministic, false);
  CADRE_DEFAULT(training, max_nonfinite_steps, 10);
  CADRE_DEFAULT(training, eval_every, 0);
  CADRE_DEFAULT(training, log_every, 1);

  // The coefficients stay unset: then the model's own are in force.
  auto& moe = *spec.mutable_moe();
  Default(moe.mutable_overflow_policy(), "dropless");
  Default(moe.mutable_placement(),
          tuning.method() == "full" ? "greedy" : "eplb");
  Default(moe.mutable_rebalance(),
          moe.placement() != "contiguous" ? "auto" : "off");
  CADRE_DEFAULT(moe, rebalance_min_gain, 0.03);
  CADRE_DEFAULT(moe, rebalance_every, 50);
  CADRE_DEFAULT(moe, spare_slots_per_rank, 0);

  auto& checkpoint = *spec.mutable_checkpoint();
  Default(checkpoint.mutable_every(), "15m");
  CADRE_DEFAULT(checkpoint, every_steps, 0);
  CADRE_DEFAULT(checkpoint, keep_last, 3);
  CADRE_DEFAULT(checkpoint, keep_every_steps, 0);
  CADRE_DEFAULT(checkpoint, resume_optimizer, true);
  // Names of checkpoints stay as they are.
  if (checkpoint.resume_from().rfind("jobs/", 0) != 0) {
    *checkpoint.mutable_resume_from() =
        Absolute(checkpoint.resume_from(), base_dir);
  }

  auto& output = *spec.mutable_output();
  *output.mutable_dir() = Absolute(output.dir(), base_dir);
  Default(output.mutable_adapter_format(), "auto");
#undef CADRE_DEFAULT
  return spec;
}

}  // namespace cadre
