#ifndef CADRE_PLAN_CAPACITY_H_
#define CADRE_PLAN_CAPACITY_H_

// Static sizes of expert dispatch: what a rank may send and receive in one
// layer of one micro-batch. Pure; thread-safe.
//
// Letters: T tokens per rank and micro-batch, k experts per token, E experts,
// P expert-parallel ranks, Dr width that the routed experts see.

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"

namespace cadre {

struct CapacityOptions {
  int64_t tokens = 0;  // T, the fixed length of the micro-batch with padding
  int64_t top_k = 0;
  int64_t num_experts = 0;
  double capacity_factor = 1.25;  // at least 1
  int64_t min_capacity = 1;       // C_min
};

// Slots that a logical expert admits per source rank and micro-batch under any
// policy but dropless:
//   C = min(T, max(C_min, ceil(capacity_factor T k / E)))
// T bounds it because a token holds an expert at most once. INVALID_ARGUMENT
// for sizes below 1 or a factor below 1.
absl::StatusOr<int64_t> ExpertCapacity(const CapacityOptions& options);

struct DispatchShape {
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t num_experts = 0;
  int64_t num_ranks = 1;       // P
  int64_t slots_per_rank = 0;  // E / P and the spare ones
};

// Rows that a token costs when each destination (rank or node) gets a token at
// most once, for k independent uniform choices: P (1 - (1 - 1/P)^k).
double DedupRowsPerToken(int64_t num_destinations, int64_t top_k);
// The same for k different experts out of E in P equal parts:
// P (1 - C(E - E/P, k) / C(E, k)). What a uniform router sends exactly; the
// approximation above is lower, by 0.2 % at E = 896, k = 16, P = 8.
double DedupRowsPerTokenExact(int64_t num_destinations, int64_t top_k,
                              int64_t num_experts);

// Dropless with bounded memory: buffers hold headroom x the mean. A step that
// would overflow is run again one rung higher; the last rung cannot overflow.
inline constexpr std::array<double, 4> kHeadroomLadder = {1.25, 1.5, 2.0, 3.0};
inline constexpr int kFullRung = static_cast<int>(kHeadroomLadder.size());
// Headroom of rung 0 .. kFullRung - 1; for kFullRung what it comes to.
double HeadroomOfRung(const DispatchShape& shape, int rung);

// Rows of a rank's buffers.
struct DispatchBounds {
  // From one source rank to one destination rank (one row per token).
  int64_t segment_rows = 0;
  // Received by a rank from all sources.
  int64_t receive_rows = 0;
  // Rows of the grouped GEMMs: a received row counts once per slot it goes to.
  int64_t expert_rows = 0;
};

// Bounds at a rung of the ladder. At kFullRung every token may go to every rank
// and all its k experts may lie on one: T, P T and P T min(k, slots_per_rank).
DispatchBounds BoundsAtRung(const DispatchShape& shape, int rung);
// Bounds under a capacity of C slots per source rank and expert: what a rank's
// experts admit, P slots_per_rank C rows at most, a copy counted like an
// expert.
DispatchBounds BoundsAtCapacity(const DispatchShape& shape, int64_t capacity);

// Bytes that one rank sends in one direction of one layer's dispatch, mean of a
// uniform router. The combine returns the same.
struct AllToAllBytes {
  // Rows with width `row_width`, including those for the rank itself.
  double payload = 0.0;
  // (slot id, routing weight) of each choice: 8 bytes x T k. The combine and
  // the return of gradients have 0 and 4.
  double metadata = 0.0;
  // payload that leaves the rank: (P - 1) / P of it.
  double wire = 0.0;
};
AllToAllBytes DispatchBytes(const DispatchShape& shape, int64_t row_width,
                            int64_t element_bytes);

}  // namespace cadre

#endif  // CADRE_PLAN_CAPACITY_H_
