#ifndef CADRE_PLAN_MEMORY_BUDGET_H_
#define CADRE_PLAN_MEMORY_BUDGET_H_

// Bytes of the most loaded rank, term by term, before anything is allocated.
// For LoRA and full fine-tuning, for every model that model/model_spec.h can
// describe, and for both backends. Pure; thread-safe. docs/memory_model.md
// derives the terms and works two examples.
//
//   Pd, Pe dense and routed parameters, Ad, Ae those of the adapter; S, P, edp
//   of the mesh; w bytes of a weight (2 GPU, 4 CPU), g of a gradient (4), s of
//   optimizer state (12 with a master copy, 8 on CPU, whose weights are the
//   masters); be bytes of a resident expert weight.
//
//   term      LoRA                              full fine-tuning
//   dense     w Pd / S                          (w + g + s) Pd / S
//   experts   be Pe slots / (E P)               (w + g + s / edp) Pe / P
//             (/ edp if sharded over EDP)       (w + g + s) Pe / (P edp)
//   adapters  (w + g) Ad + s Ad / S,
//             (w + g) Ae slots / (E P) + s Ae / (P edp)
//   gather    w x two neighbouring units, the   same
//             largest pair (S > 1)
//   reduce    g L(Ad, S);                       g (1 + 1/S) x largest unit,
//             experts with replicas:            S = 1: g L(Pd, 1); experts:
//             g L(Ae slots / (E P), edp)        g L(Pe slots / (E P), edp)
//             where L(n, s) = (1 + 1/s) min(n, 16 Mi)
//   dispatch  2 directions x w headroom T min(k, dedup rows) Dr  (P > 1)
//   dequantisation  2 buffers of one layer's experts, 2 x 2 Pe_layer / P
//   logits    w x chunk x vocabulary            same
//   context   of the runtime, measured when a session starts

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"
#include "plan/activation_bytes.h"
#include "plan/mesh.h"
#include "plan/pass_memory.h"

namespace cadre {

enum class MemoryBackend { kGpu, kCpu };

// What depends on the device.
struct MemoryConstants {
  double weight_bytes = 2;  // also of activations
  double gradient_bytes = 4;
  double state_bytes = 12;     // master, m, v
  int64_t logits_rows = 1024;  // rows of logits at a time
  int64_t kda_head_group = 8;
  // Feed-forward parts run in blocks of that many tokens; 0: all at once.
  int64_t ffn_token_block = 0;
  // Quantised expert weights stay as they are stored (MXFP4, block FP8).
  bool keeps_quantised = true;
  int64_t context_bytes = 0;
  // Activations, dispatch and logits are those of the engine's arenas, found by
  // plan/pass_memory.h; false: from the tables of plan/activation_bytes.h.
  bool follows_arenas = false;
};
// GPU: CUDA's context, and NCCL's windows when there are peers. CPU: f32, whose
// weights are their own masters; quantised weights are read into f32; the
// process itself.
MemoryConstants DefaultConstants(MemoryBackend backend, int world_size);

// Parameters by where they live.
struct ModelCounts {
  double dense = 0.0;
  double experts = 0.0;
  double experts_layer = 0.0;      // largest layer
  double quantised_experts = 0.0;  // of `experts`, stored MXFP4
  // Dense units in the order of the forward pass: embedding, blocks, head.
  std::vector<double> units;
  double head = 0.0;
  double adapter_dense = 0.0, adapter_experts = 0.0;
  int64_t num_experts = 0, top_k = 0;
  double routed_width = 0.0;  // Dr
};
// lora null: no adapter.
ModelCounts CountModel(const ModelSpec& model, const LoraPlan* lora);

struct MemoryRequest {
  const ModelSpec* model = nullptr;
  const LoraPlan* lora = nullptr;  // null: full fine-tuning
  // Of the two above, when many layouts are compared; null: counted here.
  const ModelCounts* counts = nullptr;
  MeshSpec mesh;
  int64_t spare_slots_per_rank = 0;
  int64_t tokens = 0;            // T: per rank and micro-batch
  int64_t longest_document = 0;  // 0: T
  // The first blocks of the model keep their inputs only and are replayed in
  // the backward pass; the others keep all.
  int replayed_blocks = kAllBlocks;
  // Expert weights (and, when trained, their gradients) are sharded over the
  // expert replicas and gathered for use.
  bool shard_experts_over_edp = false;
  // 1 / rank balancedness: the most loaded rank's share of expert rows.
  double imbalance = 1.0;
  double headroom = 1.25;  // of dispatch buffers, plan/capacity.h
  MemoryConstants constants;
};

// Terms that depend on what is routed, and the one that is not the engine's.
inline constexpr char kKeptTerm[] = "kept activations";
inline constexpr char kLiveTerm[] = "live block";
inline constexpr char kContextTerm[] = "runtime context";

struct BudgetTerm {
  std::string name;  // "expert optimizer state"
  int64_t bytes = 0;
};

struct MemoryBudget {
  std::vector<BudgetTerm> terms;  // fixed order, those above zero
  int64_t total = 0;
  // 0 when the plan has no such term.
  int64_t BytesOf(const std::string& name) const;
  // CADRE_CHECKs that there is one.
  const BudgetTerm& Largest() const;
};

// INVALID_ARGUMENT for a mesh that does not fit the model.
absl::StatusOr<MemoryBudget> BudgetMemory(const MemoryRequest& request);

// RESOURCE_EXHAUSTED when the total is above what a rank has; names the largest
// term, the numbers and what would make it smaller.
absl::Status CheckFits(const MemoryBudget& budget, int64_t rank_bytes);

// One line per term with its share, largest first, then the total.
std::string RenderBudget(const MemoryBudget& budget);

// "85.1 GB": decimal units, three digits.
std::string HumanBytes(int64_t bytes);

}  // namespace cadre

#endif  // CADRE_PLAN_MEMORY_BUDGET_H_
