#ifndef CADRE_WORKER_MODEL_NORM_H_
#define CADRE_WORKER_MODEL_NORM_H_

// RMSNorm with its weight; keeps 1/rms of the last forward pass.

#include "absl/status/status.h"
#include "worker/model/context.h"
#include "worker/model/parameters.h"

namespace cadre {

class Norm {
 public:
  Norm() = default;
  // unit_offset: multiply by 1 + weight.
  Norm(Parameter* weight, double eps, bool unit_offset)
      : weight_(weight), eps_(eps), unit_offset_(unit_offset) {}

  // Over the last dimension. y may be x only if Backward is never called.
  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y);
  // x as given to Forward. dx may be dy unless accumulate.
  absl::Status Backward(const LayerContext& ctx, const Tensor& x,
                        const Tensor& dy, const Tensor& dx,
                        bool accumulate = false);

 private:
  Parameter* weight_ = nullptr;
  double eps_ = 1e-6;
  bool unit_offset_ = false;
  Tensor rstd_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_NORM_H_
