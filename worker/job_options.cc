#include "worker/job_options.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "plan/pass_memory.h"
#include "plan/placement_proto.h"

namespace cadre {
namespace {

using cadre::v1::Assignment;
using cadre::v1::JobSpec;

absl::Status Unsupported(absl::string_view field, absl::string_view value,
                         absl::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": ", value, " is not supported by this worker; ", remedy));
}

// One of two words; empty is the first.
absl::StatusOr<bool> IsSecond(absl::string_view field, absl::string_view value,
                              absl::string_view first,
                              absl::string_view second) {
  if (value.empty() || value == first) return false;
  if (value == second) return true;
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": '", value, "' is neither ", first, " nor ", second));
}

absl::Status CheckSupported(const JobSpec& spec) {
  const auto& moe = spec.moe();
  if (moe.bias_update_rate() > 0.0) {
    return Unsupported("moe.bias_update_rate",
                       absl::StrCat(moe.bias_update_rate()), "leave it out");
  }
  const std::string& reduce = spec.training().reduce_dtype();
  if (!reduce.empty() && reduce != "fp32") {
    return Unsupported("training.reduce_dtype", reduce, "use fp32");
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainMoeOptions> MoeOf(const Assignment& assignment) {
  const auto& moe = assignment.spec().moe();
  TrainMoeOptions out;
  const std::string& policy = moe.overflow_policy();
  if (policy == "drop_by_weight") {
    out.overflow = OverflowPolicy::kDropByWeight;
  } else if (policy == "drop_by_position") {
    out.overflow = OverflowPolicy::kDropByPosition;
  } else if (policy == "remap") {
    out.overflow = OverflowPolicy::kRemap;
  } else if (!policy.empty() && policy != "dropless") {
    return Unsupported("moe.overflow_policy", policy,
                       "use dropless, drop_by_weight, drop_by_position or "
                       "remap");
  }
  if (moe.has_capacity_factor()) out.capacity_factor = moe.capacity_factor();
  if (moe.has_aux_loss_coef()) out.aux_loss_coef = moe.aux_loss_coef();
  out.z_loss_coef = moe.z_loss_coef();
  if (moe.spare_slots_per_rank() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe.spare_slots_per_rank: ", moe.spare_slots_per_rank(),
                     " is below 0"));
  }
  out.spare_slots_per_rank = moe.spare_slots_per_rank();
  if (assignment.has_placement()) {
    CADRE_ASSIGN_OR_RETURN(ExpertPlacement placement,
                           FromProto(assignment.placement()));
    out.placement = std::make_shared<ExpertPlacement>(std::move(placement));
  }
  return out;
}

// A plan of a release that knew all or none has no number.
int ReplayedBlocks(const v1::Plan& plan) {
  return plan.activation_checkpointing() && plan.replayed_blocks() == 0
             ? kAllBlocks
             : plan.replayed_blocks();
}

TrainModelOptions ModelOf(const Assignment& assignment) {
  const auto& model = assignment.spec().model();
  return {.path = model.path(),
          .revision = model.revision(),
          .config = model.config(),
          .random_init = model.init() == "random",
          .init_adapter = model.adapter(),
          .tokenizer = model.tokenizer(),
          .dtype = model.dtype(),
          .replayed_blocks = ReplayedBlocks(assignment.plan())};
}

TrainDataOptions DataOf(const JobSpec& spec) {
  const auto& data = spec.data();
  TrainDataOptions out;
  out.train = {data.train().begin(), data.train().end()};
  out.eval = {data.eval().begin(), data.eval().end()};
  out.format = data.format();
  if (data.has_max_seq_len()) out.max_seq_len = data.max_seq_len();
  out.too_long = data.too_long();
  if (data.has_packing()) out.packing = data.packing();
  if (data.has_shuffle()) out.shuffle = data.shuffle();
  out.loss_on = data.loss_on();
  return out;
}

absl::StatusOr<TuningOptions> TuningOf(const JobSpec& spec) {
  const auto& tuning = spec.tuning();
  TuningOptions out;
  CADRE_ASSIGN_OR_RETURN(
      const bool full,
      IsSecond("tuning.method", tuning.method(), "lora", "full"));
  if (full) out.method = TuningOptions::Method::kFull;
  if (tuning.has_lora_rank()) out.lora_rank = tuning.lora_rank();
  out.lora_alpha =
      tuning.has_lora_alpha() ? tuning.lora_alpha() : 2.0 * out.lora_rank;
  out.lora_dropout = tuning.lora_dropout();
  if (tuning.lora_target_modules_size() > 0) {
    out.lora_target_modules = {tuning.lora_target_modules().begin(),
                               tuning.lora_target_modules().end()};
  }
  CADRE_ASSIGN_OR_RETURN(out.rank_stabilized,
                         IsSecond("tuning.lora_scaling", tuning.lora_scaling(),
                                  "standard", "rank_stabilized"));
  CADRE_ASSIGN_OR_RETURN(
      out.shared_experts_adapter,
      IsSecond("tuning.lora_expert_layout", tuning.lora_expert_layout(),
               "per_expert", "shared"));
  return out;
}

absl::StatusOr<TrainingOptions> TrainingOf(const Assignment& assignment,
                                           const TuningOptions& tuning) {
  const auto& training = assignment.spec().training();
  TrainingOptions out;
  if (training.has_epochs()) out.epochs = training.epochs();
  out.max_steps = training.max_steps();
  // What the coordinator counted is what every attempt does.
  if (assignment.total_steps() > 0) out.max_steps = assignment.total_steps();
  if (training.has_global_batch_size()) {
    out.global_batch_size = training.global_batch_size();
  }
  if (assignment.plan().micro_batch_size() > 0) {
    out.micro_batch_size = assignment.plan().micro_batch_size();
  } else if (training.has_micro_batch_size()) {
    out.micro_batch_size = training.micro_batch_size();
  }
  if (training.has_learning_rate()) {
    out.learning_rate = training.learning_rate();
  } else if (tuning.method == TuningOptions::Method::kFull) {
    out.learning_rate = 1e-5;
  }
  CADRE_ASSIGN_OR_RETURN(out.schedule, ParseScheduleKind(training.schedule()));
  if (training.has_warmup_ratio()) out.warmup_ratio = training.warmup_ratio();
  if (training.has_min_lr_ratio()) out.min_lr_ratio = training.min_lr_ratio();
  out.weight_decay = training.weight_decay();
  if (training.has_beta1()) out.beta1 = training.beta1();
  if (training.has_beta2()) out.beta2 = training.beta2();
  if (training.has_epsilon()) out.epsilon = training.epsilon();
  if (training.has_max_grad_norm()) {
    out.max_grad_norm = training.max_grad_norm();
  }
  if (training.has_seed()) out.seed = static_cast<uint64_t>(training.seed());
  if (training.has_max_nonfinite_steps()) {
    out.max_nonfinite_steps = training.max_nonfinite_steps();
  }
  out.eval_every = training.eval_every();
  if (training.has_log_every()) out.log_every = training.log_every();
  return out;
}

absl::StatusOr<TrainCheckpointOptions> CheckpointOf(
    const Assignment& assignment) {
  const auto& checkpoint = assignment.spec().checkpoint();
  TrainCheckpointOptions out;
  out.dir = assignment.checkpoint_dir();
  if (!checkpoint.every().empty() &&
      !absl::ParseDuration(checkpoint.every(), &out.every)) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.every: '", checkpoint.every(),
                     "' is not a duration such as 90s or 15m"));
  }
  out.every_steps = checkpoint.every_steps();
  if (checkpoint.has_keep_last()) out.keep_last = checkpoint.keep_last();
  out.keep_every_steps = checkpoint.keep_every_steps();
  out.resume_path = assignment.resume_path();
  out.resume_manifest_sha256 = assignment.resume_manifest_sha256();
  // The optimizer is left out only where the job begins from a foreign
  // checkpoint; going on with its own always takes everything.
  const bool foreign =
      assignment.resume_step() == 0 && !checkpoint.resume_from().empty();
  if (foreign && checkpoint.has_resume_optimizer()) {
    out.resume_optimizer = checkpoint.resume_optimizer();
  }
  return out;
}

}  // namespace

absl::StatusOr<TrainerOptions> MakeTrainerOptions(
    const Assignment& assignment) {
  const JobSpec& spec = assignment.spec();
  CADRE_RETURN_IF_ERROR(CheckSupported(spec));
  TrainerOptions options;
  options.job = assignment.job();
  options.attempt_epoch = assignment.attempt_epoch();
  const auto& plan = assignment.plan();
  options.mesh.world_size = plan.world_size();
  if (plan.fsdp_shard_group_size() > 0) {
    options.mesh.fsdp_shard_group_size = plan.fsdp_shard_group_size();
  }
  if (plan.expert_parallel_size() > 0) {
    options.mesh.expert_parallel_size = plan.expert_parallel_size();
  }
  options.rank = assignment.rank();
  options.link_domains = {assignment.link_domains().begin(),
                          assignment.link_domains().end()};
  if (options.rank < 0 || options.rank >= options.mesh.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("assignment: rank ", options.rank, " of a world of ",
                     options.mesh.world_size));
  }
  options.model = ModelOf(assignment);
  options.data = DataOf(spec);
  CADRE_ASSIGN_OR_RETURN(options.tuning, TuningOf(spec));
  CADRE_ASSIGN_OR_RETURN(options.moe, MoeOf(assignment));
  CADRE_ASSIGN_OR_RETURN(options.training,
                         TrainingOf(assignment, options.tuning));
  CADRE_ASSIGN_OR_RETURN(options.checkpoint, CheckpointOf(assignment));
  options.output = {.dir = assignment.output_dir(),
                    .adapter_format = spec.output().adapter_format()};
  return options;
}

}  // namespace cadre
