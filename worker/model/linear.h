#ifndef CADRE_WORKER_MODEL_LINEAR_H_
#define CADRE_WORKER_MODEL_LINEAR_H_

// y = x W^T, with or without an adapter: y += s (drop(x) A^T) B^T. Frozen
// weights get no gradient work. Views parameters that the model owns; keeps
// what its backward pass needs from the last forward pass. Not thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/tensor.h"
#include "worker/model/context.h"
#include "worker/model/parameters.h"

namespace cadre {

// The adapter of one matrix; a null `a` means none.
struct LoraBranch {
  Parameter* a = nullptr;  // [r, in], or [E, r, in]
  Parameter* b = nullptr;  // [out, r], or [E, out, r]
  double scale = 0.0;
  double dropout = 0.0;
  uint64_t id = 0;  // makes the dropout masks of different modules differ

  // drop(x), or x itself without dropout; from scratch.
  absl::StatusOr<Tensor> Dropped(const LayerContext& ctx,
                                 const Tensor& x) const;
};

class Linear {
 public:
  Linear() = default;
  // `weight` is [out, in].
  Linear(Parameter* weight, LoraBranch lora) : weight_(weight), lora_(lora) {}

  int64_t in() const { return weight_->value.dim(1); }
  int64_t out() const { return weight_->value.dim(0); }
  // Without the adapter.
  const Tensor& weight() const { return weight_->value; }

  // x [T, in] -> y [T, out], overwritten, of x's dtype or the parameters'.
  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y);

  // y of the last Forward once more, from the same x.
  absl::Status ForwardAgain(const LayerContext& ctx, const Tensor& x,
                            const Tensor& y) const;

  // x as given to the last Forward; dy may be of the parameters' dtype. dx [T,
  // in] is overwritten, or added to with accumulate; absent: not wanted.
  absl::Status Backward(const LayerContext& ctx, const Tensor& x,
                        const Tensor& dy, const Tensor& dx,
                        bool accumulate = false);

 private:
  absl::Status MultiplyWeight(const LayerContext& ctx, const Tensor& x,
                              const Tensor& y) const;
  absl::Status AddAdapter(const LayerContext& ctx, const Tensor& y) const;
  absl::Status LoraBackward(const LayerContext& ctx, const Tensor& x,
                            const Tensor& dy, const Tensor& dx);

  Parameter* weight_ = nullptr;
  LoraBranch lora_;
  Tensor xa_;  // drop(x) A^T of the last forward pass
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_LINEAR_H_
