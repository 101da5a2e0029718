#ifndef CADRE_PLAN_LAYOUT_H_
#define CADRE_PLAN_LAYOUT_H_

// From a model, a number of ranks and their memory to a parallel layout that
// was checked: the automatic path. Pure; thread-safe.
//
//   ASSIGN_OR_RETURN(Layout layout, ChooseLayout({.model = &spec,
//       .lora = &lora, .world_size = 8, .rank_bytes = 141'000'000'000,
//       .tokens = 8192, .constants = DefaultConstants(kGpu, 8)}));

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/memory_budget.h"
#include "plan/recompute.h"

namespace cadre {

struct LayoutRequest {
  const ModelSpec* model = nullptr;
  const LoraPlan* lora = nullptr;  // null: full fine-tuning
  int world_size = 1;
  // What one rank has.
  int64_t rank_bytes = 0;
  // rank_bytes is a guess: nothing is refused for it; when nothing fits, the
  // layout with the least memory wins.
  bool rank_bytes_assumed = false;
  // The same for memory that is known: a question, not an order.
  bool least_when_nothing_fits = false;
  int64_t tokens = 0;            // per rank and micro-batch
  int64_t longest_document = 0;  // 0: tokens
  int64_t spare_slots_per_rank = 0;
  // Fixed by the user; unset: chosen here.
  std::optional<int> fsdp_shard_group_size;
  std::optional<int> expert_parallel_size;
  std::optional<int> replayed_blocks;  // kAllBlocks: all
  // Ranks of one link domain: degrees up to it are cheap. 0: unknown.
  int domain_size = 0;
  double imbalance = 1.0;
  double headroom = 1.25;
  MemoryConstants constants;
};

struct Layout {
  MeshSpec mesh;
  int64_t slots_per_rank = 0;      // 0: the model has no experts
  int replayed_blocks = 0;         // of the model's blocks; never kAllBlocks
  const char* recompute = "none";  // RecomputeName
  MemoryBudget budget;
  // Why, one line per choice that was made here, and one when the guess of the
  // memory is passed.
  std::vector<std::string> reasons;
};

// The cheapest layout that fits. In this order:
//   1. both degrees inside a link domain before either crosses it;
//   2. less recomputation, in quarters of the blocks;
//   3. smaller expert_parallel_size: its exchange depends on every token;
//   4. smaller fsdp_shard_group_size: its gathers hide behind compute.
// Only sizes that divide the world, and expert sizes that divide the experts,
// are tried. INVALID_ARGUMENT when a fixed size fits neither,
// RESOURCE_EXHAUSTED (of the layout with the least memory) when nothing fits.
absl::StatusOr<Layout> ChooseLayout(const LayoutRequest& request);

// All that ChooseLayout looks at: those that fit first, the cheapest of them
// first; then the others, by memory. Without reasons.
absl::StatusOr<std::vector<Layout>> ListLayouts(const LayoutRequest& request);

}  // namespace cadre

#endif  // CADRE_PLAN_LAYOUT_H_
