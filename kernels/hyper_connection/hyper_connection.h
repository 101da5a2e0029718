#ifndef CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_H_
#define CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_H_

// Manifold-constrained hyper-connections (mHC, glm5_next): m residual streams
// per token, mixed around each sublayer by a doubly stochastic matrix made from
// the streams themselves. T tokens, m streams, H hidden, Q = (2 + m) m.
// Stateless.
//
//   X = StreamsBroadcast(embedding, 1)
//   each site:  (x, pre, post, comb) = HyperConnectionRead(X)
//               o = sublayer(norm(x)) ;  X = HyperConnectionWrite(X, o)
//   x = StreamsSum(X, 1/m) at the end

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct HyperConnectionParameters {
  Tensor fn;               // [Q, m*H]
  Tensor base;             // [Q]
  Tensor scale;            // [3]
  double norm_eps = 1e-6;  // of the weightless norm (rms_norm_eps)
  double eps = 1e-6;       // hc_eps
  int64_t sinkhorn_iters = 20;
};

struct HyperConnectionReadArgs {
  Tensor streams;  // X [T,m,H]
  HyperConnectionParameters parameters;
  Tensor x;     // [T,H]
  Tensor pre;   // [T,m]
  Tensor post;  // [T,m]
  Tensor comb;  // C [T,m,m]
  // Kept for the backward.
  Tensor logits;  // [T,Q], the projections before scale and base
  Tensor rstd;    // [T]
};

// f = flatten(X) rstd, rstd = (mean(flatten(X)^2) + norm_eps)^-1/2
// logits = fn f = [lp m | lo m | lc m*m row-major]
// pre = sigmoid(scale0 lp + base) + eps ;  post = 2 sigmoid(scale1 lo + base)
// C = softmax over its second index of (scale2 lc + base), + eps; then
// C <- C/(colsum + eps); then (sinkhorn_iters - 1) times
// C <- C/(rowsum + eps), C <- C/(colsum + eps).  x = sum_i pre_i X_i
//
// All tensors of one dtype, f32 or f64 on the CPU. 1 <= m <= 8, H >= 1,
// sinkhorn_iters in [1, 64]; T may be 0. Aliasing: none. Bitwise
// deterministic.
absl::Status HyperConnectionRead(const Exec& exec,
                                 const HyperConnectionReadArgs& args);

struct HyperConnectionReadBackwardArgs {
  Tensor streams;
  HyperConnectionParameters parameters;
  Tensor pre, post, logits, rstd;  // as the forward wrote them
  Tensor dx;                       // [T,H]
  Tensor dpost;                    // [T,m], of the write of this site
  Tensor dcomb;                    // [T,m,m], likewise
  Tensor dstreams;   // [T,m,H], added to (the write's part is there already)
  Tensor workspace;  // [T,Q]
  // Added to; each optional.
  Tensor dfn, dbase, dscale;
};
absl::Status HyperConnectionReadBackward(
    const Exec& exec, const HyperConnectionReadBackwardArgs& args);

struct HyperConnectionWriteArgs {
  Tensor streams;      // X [T,m,H]
  Tensor o;            // [T,H], what the sublayer gave
  Tensor post;         // [T,m]
  Tensor comb;         // [T,m,m]
  Tensor streams_out;  // X' [T,m,H]; may be streams itself
};
// X'_i = post_i o + sum_j C[j,i] X_j
absl::Status HyperConnectionWrite(const Exec& exec,
                                  const HyperConnectionWriteArgs& args);

struct HyperConnectionWriteBackwardArgs {
  Tensor streams, o, post, comb;  // as given to the forward
  Tensor dstreams_out;            // [T,m,H]
  // Overwritten. dstreams may be dstreams_out itself.
  Tensor d_o;       // [T,H]
  Tensor dpost;     // [T,m]
  Tensor dcomb;     // [T,m,m]
  Tensor dstreams;  // [T,m,H]
};
absl::Status HyperConnectionWriteBackward(
    const Exec& exec, const HyperConnectionWriteBackwardArgs& args);

struct StreamsArgs {
  Tensor x;        // [T,H]
  Tensor streams;  // [T,m,H]
  double factor = 1.0;
};
// streams[t,i] = factor x[t]: the start (factor 1), and the backward of the
// mean at the end (factor 1/m).
absl::Status StreamsBroadcast(const Exec& exec, const StreamsArgs& args);
// x[t] = factor sum_i streams[t,i]: the mean, and the backward of the start.
absl::Status StreamsSum(const Exec& exec, const StreamsArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_H_
