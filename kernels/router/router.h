#ifndef CADRE_KERNELS_ROUTER_ROUTER_H_
#define CADRE_KERNELS_ROUTER_ROUTER_H_

// Expert selection: from router logits to the k experts of each token and
// their weights. T tokens, E experts. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct RouterOptions {
  enum class Score {
    kSigmoid,  // s = sigmoid(logits)
    kSoftmax,  // s = softmax(logits)
  } score = Score::kSigmoid;
  // Experts are cut into this many equal, consecutive groups of which the best
  // topk_groups stay eligible; 1 = no groups.
  int64_t num_groups = 1;
  int64_t topk_groups = 1;
  // w_i = s_i / (sum of the selected s + renormalize_eps) instead of s_i.
  bool renormalize = true;
  double renormalize_eps = 0.0;
  double scaling = 1.0;  // multiplies the weights
};

struct RouterForwardArgs {
  Tensor logits;  // [T,E]
  // Optional [E], added to the scores for the choice only.
  Tensor correction_bias;
  // Optional i32 [T]: 0 marks a padding token. Absent: all tokens are real.
  Tensor mask;
  RouterOptions options;
  Tensor ids;      // i32 [T,k], best first; -1 for padding tokens
  Tensor weights;  // [T,k]; 0 for padding tokens
  Tensor counts;   // i64 [E], overwritten: tokens of each expert; optional
  // ids is an input, each in [0, E) and none twice: nothing is chosen.
  bool ids_given = false;
};

struct RouterBackwardArgs {
  Tensor logits;  // as given to the forward
  RouterOptions options;
  Tensor ids;               // as the forward wrote them
  Tensor dweights;          // [T,k]
  Tensor dlogits;           // [T,E]
  bool accumulate = false;  // dlogits += instead of =
};

// Choice: s' = s + correction_bias. With groups, a group's score is the sum of
// its two largest s' (of its only one if it has one); experts outside the
// topk_groups best groups are not eligible. ids = the k largest s'. Every
// selection orders by score descending, then by lower index; -0 equals +0.
// Weight: from s, never from s'.
//
// dtypes: logits, bias, weights alike, f32 or f64 on the CPU; f32 on CUDA.
// Limits: 1 <= k <= experts eligible (E topk_groups / num_groups); num_groups
// divides E; logits must not be NaN. T may be 0.
// Aliasing: none. Determinism: bitwise.
absl::Status RouterForward(const Exec& exec, const RouterForwardArgs& args);

// The choice is a constant. With S = sum of the selected s + eps:
//   sigmoid: ds_i = scaling (dw_i - sum_j dw_j s_j / S) / S, or scaling dw_i;
//            dlogit_i = ds_i s_i (1 - s_i)
//   softmax: ds_i likewise; dlogit_e = s_e (ds_e - sum_j ds_j s_j) for every e
//            (renormalised with eps = 0 this is 0 outside the selected set,
//            and is then computed as a softmax over the selected logits)
// Padding tokens (id -1) get 0.
absl::Status RouterBackward(const Exec& exec, const RouterBackwardArgs& args);

// ---- auxiliary load-balance loss -------------------------------------------
//
// Over all mixture-of-experts layers together, p = softmax(logits), N = rows
// (real tokens summed over layers):
//   f_e = (times e is among the k largest p) / N ;  P_e = sum p_e / N
//   aux = E sum_e f_e P_e
// Call Accumulate once a layer into the same tables, then Loss once, then
// Backward once a layer.

struct RouterAuxStatistics {
  Tensor counts;    // i64 [E]
  Tensor prob_sum;  // f64 [E]
  Tensor num_rows;  // i64 [1]
};

struct RouterAuxAccumulateArgs {
  Tensor logits;  // [T,E], the raw ones; no correction bias here
  Tensor mask;    // optional, as above
  int64_t top_k = 1;
  RouterAuxStatistics statistics;  // added to; the caller zeroes them
};
absl::Status RouterAuxAccumulate(const Exec& exec,
                                 const RouterAuxAccumulateArgs& args);

// loss f64 [1], overwritten; 0 where there is no row.
absl::Status RouterAuxLoss(const Exec& exec,
                           const RouterAuxStatistics& statistics,
                           const Tensor& loss);

struct RouterAuxBackwardArgs {
  Tensor logits;                   // [T,E]
  Tensor mask;                     // optional
  RouterAuxStatistics statistics;  // of all layers
  double coefficient = 0.0;        // d(total loss)/d(aux)
  // [T,E], added to: coefficient E/N p_e (f_e - sum_j f_j p_j); f is constant.
  Tensor dlogits;
};
absl::Status RouterAuxBackward(const Exec& exec,
                               const RouterAuxBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_ROUTER_ROUTER_H_
