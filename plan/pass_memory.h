#ifndef CADRE_PLAN_PASS_MEMORY_H_
#define CADRE_PLAN_PASS_MEMORY_H_

// Bytes that one training pass of the engine takes from its arenas, found by
// allocating in the order of worker/model without memory: what a layer keeps,
// what it needs for a moment, and when that is free again. Exact but for the
// rows that routers send to a rank. A test holds it against real passes
// (worker/model/pass_memory_test.cc), so a change of what a layer allocates
// comes with a change here. Pure; thread-safe.
//
// Of the CPU: on a GPU kernels ask for workspaces of their own.

#include <cstdint>
#include <limits>
#include <vector>

#include "model/lora_targets.h"
#include "model/model_spec.h"

namespace cadre {

// For numbers of replayed blocks: as many as the model has.
inline constexpr int kAllBlocks = std::numeric_limits<int>::max();

// What routers send to and from the experts of one rank, in one layer and pass.
struct ExpertRows {
  // (token, expert) pairs that the experts here compute; T top_k where all
  // experts are here and nothing is padding.
  int64_t pairs = 0;
  // Experts on several ranks: rows of one (token, rank) each, those that stay
  // here included.
  int64_t sent = 0, received = 0;
};

// A rank's share of expert rows over the mean that is planned for before
// anything was measured.
inline constexpr double kUnmeasuredImbalance = 1.5;
// Of the most loaded rank, whose share is `imbalance` times the mean.
ExpertRows PlannedRows(int64_t tokens, int64_t top_k, int ranks,
                       double imbalance);

struct PassRequest {
  const ModelSpec* model = nullptr;
  const LoraPlan* lora = nullptr;  // null: full fine-tuning
  int64_t tokens = 0;              // T: of the micro-batch, padding included
  int64_t element_bytes = 4;       // activations and weights
  // Activation checkpointing of the first so many blocks.
  int replayed_blocks = 0;
  bool has_capacity = false;  // of experts: pairs are dropped or remapped
  ExpertRows rows;            // of every MoE layer
  // By MoE layer, in place of `rows`; empty: all alike.
  std::vector<ExpertRows> layer_rows;

  // Experts on several ranks.
  struct Dispatch {
    int ranks = 1;
    int64_t slots_per_rank = 0;
    bool has_copies = false;  // some expert lies in more than one slot
    int chunks = 1;
  } dispatch;
};

struct PassMemory {
  int64_t kept = 0;       // block inputs and routing: through the whole pass
  int64_t saved = 0;      // of forward passes, for backward passes
  int64_t temporary = 0;  // most at once
  int64_t total() const { return kept + saved + temporary; }
};
PassMemory MeasurePass(const PassRequest& request);

// The rows of many passes: what decides about the most memory of any of them.
class SeenRows {
 public:
  // `pass` by MoE layer. False: no earlier pass was smaller in anything.
  bool Add(const std::vector<ExpertRows>& pass);
  // Most of each kind over the passes added; request.layer_rows is not read.
  PassMemory Measure(PassRequest request) const;

 private:
  int64_t most_pairs_ = -1;
  std::vector<ExpertRows> fullest_;  // the pass with most pairs
  std::vector<ExpertRows> most_;     // by layer, of any pass
};

}  // namespace cadre

#endif  // CADRE_PLAN_PASS_MEMORY_H_
