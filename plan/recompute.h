#ifndef CADRE_PLAN_RECOMPUTE_H_
#define CADRE_PLAN_RECOMPUTE_H_

// Which activations a job keeps and which it makes again in the backward pass.
// The choice changes no bit of a deterministic job: routing decisions and
// sparse indices are kept under every policy. Pure; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "plan/activation_bytes.h"
#include "plan/memory_budget.h"

namespace cadre {

// One tensor that a replayed block could keep instead.
struct RecomputeItem {
  // "self_attn.q_proj", "mixer output", "expert pre-activation".
  std::string what;
  int layer = 0;
  double bytes_per_token = 0.0;  // at 2 bytes per element
  // FLOPs that a replay spends to make it again, per byte kept. A product over
  // an inner width n costs 2 n FLOPs per element of 2 bytes: n.
  double flops_per_byte = 0.0;
};

// Everything worth keeping, by falling flops_per_byte, then layer, then name:
//   outputs of Linears                      their input width
//   expert pre-activations (gate and up)    Dr
//   output of sparse attention              topk (2 kv_lora + rope) / kv_lora
//   output of dense attention               t/2 (qk + v) / v, t the document
//   output of KDA and GDN                   5.5 d
std::vector<RecomputeItem> RecomputeItems(const ModelSpec& model,
                                          const ActivationShape& shape);

struct RecomputeChoice {
  RecomputePolicy policy = RecomputePolicy::kFull;
  // Of the selective policy, in the order of RecomputeItems.
  std::vector<RecomputeItem> kept;
  double kept_bytes_per_token = 0.0;
};

// The least recomputation with which `request` (its own policy is ignored) fits
// rank_bytes: none; else, if allowed, selective with as many items as fit, best
// first; else full, whether it fits or not. INVALID_ARGUMENT as BudgetMemory.
absl::StatusOr<RecomputeChoice> ChooseRecompute(const MemoryRequest& request,
                                                int64_t rank_bytes,
                                                bool allow_selective);

}  // namespace cadre

#endif  // CADRE_PLAN_RECOMPUTE_H_
