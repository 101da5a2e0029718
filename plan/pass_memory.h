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

#include "model/lora_targets.h"
#include "model/model_spec.h"

namespace cadre {

struct PassRequest {
  const ModelSpec* model = nullptr;
  const LoraPlan* lora = nullptr;  // null: full fine-tuning
  int64_t tokens = 0;              // T: of the micro-batch, padding included
  int64_t element_bytes = 4;       // activations and weights
  bool replays_blocks = false;     // activation checkpointing
  // (token, expert) pairs that the experts here compute; T top_k where all are
  // here.
  int64_t expert_pairs = 0;

  // Experts on several ranks.
  struct Dispatch {
    int ranks = 1;
    int64_t slots_per_rank = 0;
    bool has_copies = false;  // some expert lies in more than one slot
    int chunks = 1;
    int64_t sent_rows = 0;      // of one (token, rank) each, own ones included
    int64_t received_rows = 0;  // likewise
  } dispatch;
};

struct PassMemory {
  int64_t kept = 0;       // block inputs and routing: through the whole pass
  int64_t saved = 0;      // of forward passes, for backward passes
  int64_t temporary = 0;  // most at once
  int64_t total() const { return kept + saved + temporary; }
};
PassMemory MeasurePass(const PassRequest& request);

}  // namespace cadre

#endif  // CADRE_PLAN_PASS_MEMORY_H_
