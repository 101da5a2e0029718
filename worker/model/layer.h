#ifndef CADRE_WORKER_MODEL_LAYER_H_
#define CADRE_WORKER_MODEL_LAYER_H_

// The two kinds of parts a block is made of, token mixers and feed-forward
// parts, behind one interface: [T, D] in, [T, D] out.

#include "absl/status/status.h"
#include "kernels/common/tensor.h"
#include "worker/model/context.h"

namespace cadre {

class Layer {
 public:
  virtual ~Layer() = default;

  // y is overwritten. x must stay as it is until Backward has run: the layer
  // keeps the view. What else the backward pass needs goes to ctx.saved.
  virtual absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) = 0;
  // Forward in a replay for a caller that does not read the result: y is
  // workspace, and holds anything afterwards.
  virtual absl::Status Replay(const LayerContext& ctx, const Tensor& x,
                              const Tensor& y) {
    return Forward(ctx, x, y);
  }
  // Gradients of the last Forward: dx is overwritten; gradients of trainable
  // parameters are added to theirs. dy is left as it is.
  virtual absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_LAYER_H_
