#include "worker/model/norm.h"

#include "kernels/rmsnorm/rmsnorm.h"

namespace cadre {

absl::Status Norm::Forward(const LayerContext& ctx, const Tensor& x,
                           const Tensor& y) {
  const int64_t width = weight_->value.dim(0);
  rstd_ = ctx.SavedParam({x.num_elements() / width});
  return RmsNormForward(ctx.exec, {.x = x,
                                   .w = weight_->value,
                                   .y = y,
                                   .rstd = rstd_,
                                   .eps = eps_,
                                   .unit_offset = unit_offset_});
}

absl::Status Norm::Backward(const LayerContext& ctx, const Tensor& x,
                            const Tensor& dy, const Tensor& dx,
                            bool accumulate) {
  return RmsNormBackward(ctx.exec, {.x = x,
                                    .w = weight_->value,
                                    .rstd = rstd_,
                                    .dy = dy,
                                    .dx = dx,
                                    .dw = weight_->grad,
                                    .unit_offset = unit_offset_,
                                    .accumulate_dx = accumulate});
}

}  // namespace cadre
