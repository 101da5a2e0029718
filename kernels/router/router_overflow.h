#ifndef CADRE_KERNELS_ROUTER_ROUTER_OVERFLOW_H_
#define CADRE_KERNELS_ROUTER_ROUTER_OVERFLOW_H_

// What happens when more tokens choose an expert than it may take
// (parallelism.md section 7): the tokens beyond its capacity are dropped, or
// sent to the token's next best experts with room. T tokens, E experts, k
// choices. Stateless; a pure function of its inputs: equal scores give equal
// routes whatever the number of threads or ranks of experts.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/router/router.h"

namespace cadre {

enum class OverflowPolicy {
  kDropless,        // experts take all
  kDropByWeight,    // an expert keeps the tokens that weigh it most
  kDropByPosition,  // it keeps the first ones
  kRemap,           // as kDropByWeight, then what is over moves on
};

// Rounds of remapping, and candidates of a token beyond its k choices.
inline constexpr int kRemapRounds = 8;

// Places in RouterOverflowArgs::counts.
enum RouterOverflowCount {
  kRoutedPairs = 0,    // of real tokens, before anything is dropped
  kDroppedPairs = 1,   // that have no expert in the end
  kRemappedPairs = 2,  // first of kRemapRounds: moved in round 1, 2, ...
};
inline constexpr int kNumOverflowCounts = kRemappedPairs + kRemapRounds;

struct RouterOverflowArgs {
  Tensor logits;           // [T,E] as given to RouterForward
  Tensor correction_bias;  // optional [E], as given to RouterForward
  RouterOptions options;
  OverflowPolicy policy = OverflowPolicy::kDropByWeight;
  int64_t capacity = 0;  // pairs an expert takes, at least 1
  Tensor ids;            // i32 [T,k] as RouterForward wrote them
  Tensor weights;        // [T,k], in place
  // Overwritten.
  Tensor routed_ids;  // i32 [T,k]: where each pair goes, or -1
  // [T]: for a token of which a pair was moved, what its weights add up to; -1
  // for all others, whose weights are unchanged.
  Tensor weight_sum;
  Tensor counts;     // i64 [kNumOverflowCounts]
  Tensor workspace;  // u8; CUDA only, RouterOverflowWorkspaceBytes
};

// Admission: an expert takes the first `capacity` of the pairs that chose it,
// by (weight descending, token ascending) or by token; the rest is excess.
// Remap, rounds 1 to 8: each excess pair proposes the best of the token's top
// k + 8 candidates (by score with bias among the eligible experts) which the
// token does not hold, was not refused by, and which was not full when the
// round began; pairs of one token choose in order of their weight (then of
// place) and differently. Each expert takes proposals up to its room, by
// (score with bias descending, token, place). What is left after the last round
// is dropped: it weighs 0 and other weights stay.
// A token with moved pairs: the weights of its pairs that have an expert are
// the plain scores of these experts, scaled to the sum the pairs had before.
//
// dtypes: logits, bias, weights, weight_sum alike, f32 or f64 on the CPU; f32
// on CUDA, where k is at most 56. T may be 0. Aliasing: none. Determinism:
// bitwise.
absl::Status RouterOverflow(const Exec& exec, const RouterOverflowArgs& args);

// What `workspace` has to hold on CUDA, aligned to 8 bytes.
int64_t RouterOverflowWorkspaceBytes(int64_t tokens, int64_t top_k,
                                     int64_t experts);

struct RouterOverflowBackwardArgs {
  Tensor logits;  // [T,E]
  RouterOptions options;
  Tensor routed_ids, weight_sum;  // as RouterOverflow wrote them
  // [T,k]; set to 0 for the tokens handled here, so that RouterBackward with
  // the first ids (accumulate) does the others.
  Tensor dweights;
  Tensor dlogits;  // [T,E], overwritten
};

// Of tokens with moved pairs: the gradient of the final experts' scores through
// w_i = weight_sum s_i / sum s, weight_sum being a constant. The expert from
// which a pair was moved gets none. Zeros for all other tokens.
absl::Status RouterOverflowBackward(const Exec& exec,
                                    const RouterOverflowBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ROUTER_ROUTER_OVERFLOW_H_
