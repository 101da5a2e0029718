#include "plan/validate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/lora_targets.h"
#include "plan/checker.h"
#include "plan/layout.h"
#include "plan/mesh.h"
#include "plan/pass_memory.h"

namespace cadre {
namespace {

// Planned for when the job file does not say what a worker has: the smallest
// devices in common use, and a share of a small host.
constexpr int64_t kAssumedGpuBytes = 80'000'000'000;
constexpr int64_t kAssumedCpuBytes = 8'000'000'000;

// What the job file can say but no worker of this release can do, in one place:
// each line goes when its feature lands.
void CheckReleased(const v1::JobSpec& spec, Checker& check) {
  const char kNotYet[] = "not supported by this release";
  const auto not_yet = [&](bool used, const std::string& field,
                           const std::string& value, const std::string& hint) {
    if (used) check.Error(field, absl::StrCat(value, " is ", kNotYet), hint);
  };
  not_yet(spec.moe().bias_update_rate() > 0, "moe.bias_update_rate",
          "a bias update", "remove it");
  not_yet(spec.training().reduce_dtype() != "fp32", "training.reduce_dtype",
          spec.training().reduce_dtype(), "use fp32");
}

// Without a plan for the adapter when there is none or it is wrong.
std::optional<LoraPlan> CheckModelFit(const v1::JobSpec& spec,
                                      const ModelFacts& facts, v1::Plan* plan,
                                      Checker& check) {
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
  if (!facts.spec.has_value()) return std::nullopt;
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
    return std::nullopt;
  }
  LoraOptions lora;
  lora.rank = spec.tuning().lora_rank();
  lora.alpha = spec.tuning().lora_alpha();
  lora.dropout = spec.tuning().lora_dropout();
  lora.rslora = spec.tuning().lora_scaling() == "rank_stabilized";
  lora.shared_gate_up = spec.tuning().lora_expert_layout() == "shared";
  lora.targets = {spec.tuning().lora_target_modules().begin(),
                  spec.tuning().lora_target_modules().end()};
  auto lora_plan = PlanLora(model, lora);
  if (!lora_plan.ok()) {
    check.Error("tuning.lora_target_modules",
                std::string(lora_plan.status().message()));
    return std::nullopt;
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
  return *std::move(lora_plan);
}

// Rows of one forward pass; without a wish one at a time: the least memory.
int MicroBatch(const v1::JobSpec& spec) {
  return spec.training().has_micro_batch_size()
             ? spec.training().micro_batch_size()
             : 1;
}

// Sizes that a wrong field makes meaningless; said already.
bool CanPlanMemory(const v1::JobSpec& spec) {
  return MicroBatch(spec) >= 1 && MicroBatch(spec) <= 1 << 20 &&
         spec.data().max_seq_len() >= 16 &&
         spec.data().max_seq_len() <= 1048576 &&
         spec.moe().spare_slots_per_rank() >= 0 &&
         spec.moe().spare_slots_per_rank() <= 8;
}

// Degrees, recomputation and memory; fills in what the job file leaves open.
void PlanLayout(const ModelSpec& model, const LoraPlan* lora,
                const ValidateOptions& options, Validated* out,
                Checker& check) {
  v1::JobSpec* const spec = &out->spec;
  v1::Plan* const plan = &out->plan;
  const bool cpu = spec->resources().backend() == "cpu";
  const int world = spec->resources().workers();
  LayoutRequest request = {
      .model = &model,
      .lora = lora,
      .world_size = world,
      .rank_bytes = spec->resources().min_device_memory_bytes(),
      .tokens = spec->data().max_seq_len() * MicroBatch(*spec),
      .longest_document = spec->data().max_seq_len(),
      .spare_slots_per_rank = spec->moe().spare_slots_per_rank(),
      .domain_size = options.link_domain_size,
      .imbalance = kUnmeasuredImbalance,
      .constants = DefaultConstants(
          cpu ? MemoryBackend::kCpu : MemoryBackend::kGpu, world)};
  if (request.rank_bytes <= 0) request.rank_bytes = options.device_memory_bytes;
  if (request.rank_bytes <= 0) {
    request.rank_bytes_assumed = true;
    request.rank_bytes = cpu ? kAssumedCpuBytes : kAssumedGpuBytes;
  }
  request.least_when_nothing_fits = options.memory_is_advice;
  out->rank_bytes = request.rank_bytes;
  auto& parallelism = *spec->mutable_parallelism();
  if (parallelism.has_fsdp_shard_group_size()) {
    request.fsdp_shard_group_size =
        std::max(1, parallelism.fsdp_shard_group_size());
  }
  if (parallelism.has_expert_parallel_size()) {
    request.expert_parallel_size =
        std::max(1, parallelism.expert_parallel_size());
  }
  if (parallelism.replayed_blocks() > static_cast<int>(model.blocks.size())) {
    check.Error(
        "parallelism.replayed_blocks",
        absl::StrCat(parallelism.replayed_blocks(), ", but the model has ",
                     model.blocks.size(), " blocks"),
        "lower it, or write activation_checkpointing: true for all");
    return;
  }
  if (parallelism.has_replayed_blocks()) {
    request.replayed_blocks = parallelism.replayed_blocks();
  } else if (parallelism.has_activation_checkpointing()) {
    request.replayed_blocks =
        parallelism.activation_checkpointing() ? kAllBlocks : 0;
  }
  if (options.list_layouts) {
    auto layouts = ListLayouts(request);
    // ChooseLayout says what is wrong.
    if (layouts.ok()) out->layouts = *std::move(layouts);
  }
  const auto layout = ChooseLayout(request);
  if (!layout.ok()) {
    const bool memory = absl::IsResourceExhausted(layout.status());
    check.Error(memory ? "resources.min_device_memory_bytes" : "parallelism",
                std::string(layout.status().message()));
    return;
  }
  parallelism.set_fsdp_shard_group_size(layout->mesh.fsdp_shard_group_size);
  parallelism.set_expert_parallel_size(layout->mesh.expert_parallel_size);
  parallelism.set_activation_checkpointing(layout->replayed_blocks > 0);
  parallelism.set_replayed_blocks(layout->replayed_blocks);
  if (request.rank_bytes_assumed) {
    plan->set_assumed_memory_bytes(request.rank_bytes);
  } else {
    plan->set_worker_memory_bytes(request.rank_bytes);
  }
  plan->set_expert_slots_per_rank(static_cast<int>(layout->slots_per_rank));
  plan->set_recompute(layout->recompute);
  for (const BudgetTerm& term : layout->budget.terms) {
    v1::MemoryTerm* out = plan->add_memory();
    out->set_name(term.name);
    out->set_bytes(term.bytes);
  }
  for (const std::string& reason : layout->reasons) plan->add_reasons(reason);
}

// Experts share one rank: spare copies would only fill its memory.
void CheckSpareSlots(const v1::JobSpec& spec, Checker& check) {
  const int spare = spec.moe().spare_slots_per_rank();
  if (spare > 0 && spec.parallelism().expert_parallel_size() <= 1) {
    check.Error("moe.spare_slots_per_rank",
                absl::StrCat(spare, " with parallelism.expert_parallel_size 1"),
                "set parallelism.expert_parallel_size above 1, or write 0");
  }
}

// What moves experts while the job runs, for who reads the plan.
void ExplainReplacement(const v1::JobSpec& spec, v1::Plan* plan) {
  const auto& moe = spec.moe();
  if (plan->expert_parallel_size() <= 1 || plan->expert_slots_per_rank() == 0) {
    return;
  }
  std::string text =
      absl::StrCat("expert placement ", moe.placement(), ", ",
                   moe.spare_slots_per_rank(), " spare slots per rank: ");
  if (moe.rebalance() == "auto") {
    absl::StrAppend(&text, "looked at every ", moe.rebalance_every(),
                    " steps, moved for a gain of ", moe.rebalance_min_gain());
  } else {
    absl::StrAppend(&text, "moved only by 'cadre rebalance'");
  }
  plan->add_reasons(text);
}

MeshSpec MeshOf(const v1::JobSpec& spec) {
  MeshSpec mesh_spec{.world_size = spec.resources().workers()};
  if (spec.parallelism().has_fsdp_shard_group_size()) {
    mesh_spec.fsdp_shard_group_size =
        spec.parallelism().fsdp_shard_group_size();
  }
  if (spec.parallelism().has_expert_parallel_size()) {
    mesh_spec.expert_parallel_size = spec.parallelism().expert_parallel_size();
  }
  return mesh_spec;
}

// MakePlan says what is wrong with another one.
bool MeshIsLegal(const v1::JobSpec& spec) {
  return Mesh::Create(MeshOf(spec)).ok();
}

void MakePlan(const v1::JobSpec& spec, v1::Plan* plan, Checker& check) {
  const int world = spec.resources().workers();
  if (world < 1 || world > 1024) return;  // said already
  const MeshSpec mesh_spec = MeshOf(spec);
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
  plan->set_replayed_blocks(spec.parallelism().replayed_blocks());
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
  const int micro = MicroBatch(spec);
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

// The same job, batch and all, on fewer workers.
std::vector<v1::Plan> PlanSmaller(const v1::JobSpec& sent,
                                  const v1::JobSpec& resolved,
                                  const ValidateOptions& options,
                                  const ModelFacts* facts) {
  std::vector<v1::Plan> plans;
  v1::JobSpec spec = sent;
  auto& resources = *spec.mutable_resources();
  for (int workers = resolved.resources().workers() - 1;
       workers >= resolved.resources().min_workers(); --workers) {
    if (resolved.training().global_batch_size() % workers != 0) continue;
    resources.set_workers(workers);
    resources.set_min_workers(workers);
    Validated less = ValidateJob(spec, options, facts);
    if (less.ok()) plans.push_back(std::move(less.plan));
  }
  return plans;
}

}  // namespace

bool Validated::ok() const {
  return std::none_of(diagnostics.items().begin(), diagnostics.items().end(),
                      [](const v1::Diagnostic& item) {
                        return item.severity() ==
                               v1::Diagnostic::SEVERITY_ERROR;
                      });
}

Validated ValidateJob(const v1::JobSpec& spec, const ValidateOptions& options,
                      const ModelFacts* facts) {
  Validated out;
  out.spec = ResolveJob(spec, options.base_dir);
  Checker check(&out.diagnostics);
  CheckLimits(out.spec, spec, options, check);
  CheckReleased(out.spec, check);
  std::optional<LoraPlan> lora;
  if (facts != nullptr) {
    lora = CheckModelFit(out.spec, *facts, &out.plan, check);
  }
  const int world = out.spec.resources().workers();
  const bool full = out.spec.tuning().method() == "full";
  if (facts != nullptr && facts->spec.has_value() && world >= 1 &&
      world <= 1024 && (full || lora.has_value()) && CanPlanMemory(out.spec) &&
      MeshIsLegal(out.spec)) {
    PlanLayout(*facts->spec, full ? nullptr : &*lora, options, &out, check);
  }
  CheckSpareSlots(out.spec, check);
  MakePlan(out.spec, &out.plan, check);
  ExplainReplacement(out.spec, &out.plan);
  if (out.ok() && out.spec.resources().min_workers() < world) {
    out.smaller = PlanSmaller(spec, out.spec, options, facts);
    if (out.smaller.empty()) {
      check.Warn(
          "resources.min_workers",
          absl::StrCat("no number of workers from ",
                       out.spec.resources().min_workers(), " to ", world - 1,
                       " divides the batch and suits parallelism: a "
                       "lost worker has to be replaced"));
    }
  }
  return out;
}

}  // namespace cadre
