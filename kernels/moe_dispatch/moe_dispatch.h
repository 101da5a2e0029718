#ifndef CADRE_KERNELS_MOE_DISPATCH_MOE_DISPATCH_H_
#define CADRE_KERNELS_MOE_DISPATCH_MOE_DISPATCH_H_

// What travels beside the rows of tokens when experts lie on several ranks
// (parallelism.md section 5): one row for each (token, destination rank), with
// the list of the token's (slot, weight) pairs there. T tokens, k choices a
// token, E experts, P ranks, R rows received, N pairs. Stateless.
//
//   sender:    MoeSlots;  MoePermute of ranks and of destinations
//              (kernels/moe_permute) puts pairs and rows in order;
//              MoePackPairs
//   receiver:  MoeUnpackPairs
//   backward:  MoeGather by `places` there, MoeScatterPairs here

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Added to the slot of the last pair of a row.
inline constexpr int32_t kLastPair = int32_t{1} << 30;

struct MoeSlotsArgs {
  Tensor ids;  // i32 [T,k], logical expert or -1
  // Slots of expert e: copies[first_copy[e]] to copies[first_copy[e + 1] - 1].
  Tensor first_copy;  // i32 [E+1]
  Tensor copies;      // i32, ascending for each expert
  // MoePermute's tables of ids over experts. Absent: every expert has one copy.
  Tensor offsets;  // i32 [E+1]
  Tensor row_of;   // i32 [T,k]
  int64_t ep_rank = 0;
  int64_t slots_per_rank = 1;
  // Overwritten. The pairs of a token by slot, ascending, then -1 in all three:
  Tensor slots;    // i32 [T,k]: slot on its rank; + kLastPair on a rank's last
  Tensor ranks;    // i32 [T,k]: where it lies
  Tensor choices;  // i32 [T,k]: which of the token's choices it is
  // i32 [T,min(k,P)]: the token's ranks, ascending, then -1.
  Tensor destinations;
};
// The j-th row that ep_rank sends to an expert, in token order, goes to copy
// (ep_rank + j) % copies. k is at most 64 on CUDA.
absl::Status MoeSlots(const Exec& exec, const MoeSlotsArgs& args);

struct MoePackPairsArgs {
  Tensor pair_source;     // i32 [>= N]: place in slots of each pair, flat
  Tensor slots, choices;  // i32 [T,k], of MoeSlots
  Tensor weights;         // [T,k], by choice
  // i32 [N, 1 + words of a weight], overwritten: slot, then the weight's bits.
  Tensor pairs;
};
absl::Status MoePackPairs(const Exec& exec, const MoePackPairsArgs& args);

struct MoeUnpackPairsArgs {
  Tensor pairs;  // i32 [N, 1 + words of a weight]: row after row
  int64_t slots_per_rank = 1;
  // Overwritten.
  Tensor slots;      // i32 [R,w]: of each row, then -1
  Tensor weights;    // [R,w]: beside them, then 0
  Tensor places;     // i32 [N]: place of each pair in slots, flat
  Tensor workspace;  // i32 [MoeUnpackWorkspace(N)]
};
// Where pairs do not make up R rows of at most w slots: INTERNAL on the CPU; on
// CUDA the pairs that do not fit are left out (their place is -1).
absl::Status MoeUnpackPairs(const Exec& exec, const MoeUnpackPairsArgs& args);
int64_t MoeUnpackWorkspace(int64_t num_pairs);

struct MoeScatterPairsArgs {
  Tensor values;       // [N,1]
  Tensor pair_source;  // i32 [>= N]
  Tensor choices;      // i32 [T,k]
  Tensor weights;      // [T,k]: values at their choices; the rest stays
};
absl::Status MoeScatterPairs(const Exec& exec, const MoeScatterPairsArgs& args);

// Weights and values: f32 or f64 on the CPU, f32 on CUDA. Any size may be 0.
// Outputs overlap no input. Deterministic.

}  // namespace cadre

#endif  // CADRE_KERNELS_MOE_DISPATCH_MOE_DISPATCH_H_
