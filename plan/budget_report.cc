// CheckFits and RenderBudget of memory_budget.h.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plan/memory_budget.h"

namespace cadre {
namespace {

const char* RemedyFor(const std::string& term) {
  if (term == "expert optimizer state" || term == "expert gradients") {
    return "use more workers, or tuning.method: lora";
  }
  if (absl::StartsWith(term, "expert ") || term == "dequantisation") {
    return "raise parallelism.expert_parallel_size or lower "
           "moe.spare_slots_per_rank";
  }
  if (absl::StartsWith(term, "dense ")) {
    return "raise parallelism.fsdp_shard_group_size";
  }
  if (absl::StartsWith(term, "adapter ")) {
    return "lower tuning.lora_rank or name fewer tuning.lora_target_modules";
  }
  if (term == kKeptTerm) {
    return "set parallelism.activation_checkpointing: true, or lower "
           "training.micro_batch_size or data.max_seq_len";
  }
  // As large as the largest unit of the model.
  if (term == "gather buffers" || term == "reduce buffers" ||
      term == kContextTerm) {
    return "use devices with more memory";
  }
  return "lower training.micro_batch_size or data.max_seq_len";
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.5 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f %s", digits, value, kUnits[unit]);
}

absl::Status CheckFits(const MemoryBudget& budget, int64_t rank_bytes) {
  if (budget.total <= rank_bytes) return absl::OkStatus();
  const BudgetTerm& largest = budget.Largest();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job needs ", HumanBytes(budget.total),
      " on the most loaded worker, ", HumanBytes(budget.total - rank_bytes),
      " more than its ", HumanBytes(rank_bytes), "; the largest part is \"",
      largest.name, "\" with ", HumanBytes(largest.bytes), ": ",
      RemedyFor(largest.name)));
}

std::string RenderBudget(const MemoryBudget& budget) {
  std::vector<BudgetTerm> terms = budget.terms;
  std::stable_sort(terms.begin(), terms.end(),
                   [](const BudgetTerm& a, const BudgetTerm& b) {
                     return a.bytes > b.bytes;
                   });
  std::string text;
  for (const BudgetTerm& term : terms) {
    absl::StrAppendFormat(&text, "%-26s %9s  %3.0f %%\n", term.name,
                          HumanBytes(term.bytes),
                          100.0 * term.bytes / budget.total);
  }
  absl::StrAppendFormat(&text, "%-26s %9s\n", "total",
                        HumanBytes(budget.total));
  return text;
}

}  // namespace cadre
