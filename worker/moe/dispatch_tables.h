#ifndef CADRE_WORKER_MOE_DISPATCH_TABLES_H_
#define CADRE_WORKER_MOE_DISPATCH_TABLES_H_

// Which rows a rank sends where (parallelism.md section 5): one row for each
// (token, destination rank), with the list of the token's (slot, weight) pairs
// there. Pure functions of ids and placement, on host memory; a recomputed pass
// gets the same tables. Keeps its vectors between calls. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "plan/expert_placement.h"

namespace cadre {

// The slot of each (token, choice) pair; -1 where the id is -1. The j-th row
// that the rank sends to an expert, in token order, goes to copy
// (ep_rank + j) % copies.
void ChooseSlots(absl::Span<const int32_t> ids,
                 const ExpertPlacement& placement, int64_t layer, int ep_rank,
                 std::vector<int32_t>* slots);

// What the tokens of one chunk send. Rows are ordered by destination, then
// token; pairs by row, then slot.
struct SendTables {
  // [tokens, fan_out]: destination ranks of a token, ascending, then -1.
  std::vector<int32_t> destinations;
  int64_t fan_out = 1;               // min(k, ranks)
  std::vector<int64_t> rows, pairs;  // [ranks]
  // Of each pair: token * k + choice.
  std::vector<int32_t> pair_source;
  // Of each pair: slot on its rank; the last of a row has kLastPair added.
  std::vector<int32_t> pair_slot;

  static constexpr int32_t kLastPair = int32_t{1} << 30;

  int64_t num_rows() const;
  int64_t num_pairs() const { return static_cast<int64_t>(pair_source.size()); }
};

// slots: [tokens, k] of the chunk.
void BuildSendTables(absl::Span<const int32_t> slots, int64_t top_k,
                     int64_t num_ranks, int64_t slots_per_rank,
                     SendTables* tables);

// What a rank got: rows in order of source, then as sent.
struct ReceiveTables {
  int64_t num_rows = 0;
  int64_t width = 1;  // min(k, slots per rank)
  // [num_rows, width]: local slots of a row, ascending, then -1.
  std::vector<int32_t> slots;
  // Of each pair, in the order received: its place in `slots`.
  std::vector<int32_t> pair_place;
};

// pair_slot: of all sources together. False if they do not make up num_rows
// rows of at most `width` slots below slots_per_rank.
bool BuildReceiveTables(absl::Span<const int32_t> pair_slot, int64_t num_rows,
                        int64_t width, int64_t slots_per_rank,
                        ReceiveTables* tables);

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_DISPATCH_TABLES_H_
