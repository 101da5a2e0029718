#include "worker/model_flops.h"

#include "model/lora_targets.h"
#include "plan/memory_budget.h"

namespace cadre {

double ModelFlopsPerToken(const ModelSpec& spec, const TuningOptions& tuning) {
  const bool full = tuning.method == TuningOptions::Method::kFull;
  absl::StatusOr<LoraPlan> lora = LoraPlan();
  if (!full) {
    lora = PlanLora(spec, {.rank = tuning.lora_rank,
                           .alpha = tuning.lora_alpha,
                           .rslora = tuning.rank_stabilized,
                           .dropout = tuning.lora_dropout,
                           .shared_gate_up = tuning.shared_experts_adapter,
                           .targets = tuning.lora_target_modules});
    if (!lora.ok()) return 0.0;
  }
  const ModelCounts counts = CountModel(spec, full ? nullptr : &*lora);
  const double active = counts.num_experts > 0
                            ? static_cast<double>(counts.top_k) /
                                  static_cast<double>(counts.num_experts)
                            : 0.0;
  // A tied embedding is the head, too, and then counts once.
  const double looked_up =
      spec.tie_word_embeddings ? 0.0 : counts.units.front();
  const double base = counts.dense - looked_up + active * counts.experts;
  const double adapter = counts.adapter_dense + active * counts.adapter_experts;
  return (full ? 6.0 : 4.0) * base + 6.0 * adapter;
}

}  // namespace cadre
