#ifndef CADRE_WORKER_MODEL_ROUTED_EXPERTS_H_
#define CADRE_WORKER_MODEL_ROUTED_EXPERTS_H_

// Rows through the experts of one rank: put (row, slot) pairs in slot order,
// run the slots' experts, sum what belongs to one row, weighted, in the order
// of its list. Views parameters that the model owns; keeps what its backward
// pass needs from the last forward pass. Copies share the parameters and keep
// apart what they remember. Not thread-safe.

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "worker/model/experts.h"

namespace cadre {

class RoutedExperts {
 public:
  RoutedExperts() = default;
  explicit RoutedExperts(Experts experts) : experts_(experts) {}

  // in [N, Dr]; slots i32 [N, w] of local slots or -1; weights [N, w] of
  // ctx.param_dtype. out [N, Dr] is overwritten; absent, the rows are run for
  // the backward pass alone. slots and weights must live until that. At most
  // `max_pairs` slots are not -1, where that is known: on a GPU it bounds the
  // memory of their rows.
  absl::Status Forward(const LayerContext& ctx, const Tensor& in,
                       const Tensor& slots, const Tensor& weights,
                       const Tensor& out,
                       int64_t max_pairs = std::numeric_limits<int64_t>::max());
  // d_weights [N, w] is overwritten; d_in too, or added to.
  absl::Status Backward(const LayerContext& ctx, const Tensor& d_out,
                        const Tensor& d_weights, const Tensor& d_in,
                        bool accumulate);

 private:
  Experts experts_;
  Tensor weights_;
  Tensor offsets_, row_source_, row_of_;  // tables of the permutation
  Tensor expert_out_;                     // [R, Dr]
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_ROUTED_EXPERTS_H_
