#include "worker/model/residual_mix.h"

#include "base/status_macros.h"
#include "kernels/attention_residual/attention_residual.h"

namespace cadre {

absl::StatusOr<ResidualMix> ResidualMix::Create(const std::string& name,
                                                double eps,
                                                const LayerBuilder& builder) {
  ResidualMix m;
  m.eps_ = eps;
  CADRE_ASSIGN_OR_RETURN(m.norm_, builder.Param(name + "_res_norm.weight"));
  CADRE_ASSIGN_OR_RETURN(m.proj_, builder.Param(name + "_res_proj.weight"));
  return m;
}

absl::Status ResidualMix::Forward(const LayerContext& ctx,
                                  const std::vector<Tensor>& bank,
                                  const Tensor& state, const Tensor& y) {
  rows_ = bank;
  rows_.push_back(state);
  const int64_t T = state.dim(0), N = static_cast<int64_t>(rows_.size());
  p_ = ctx.SavedParam({T, N});
  rstd_ = ctx.SavedParam({T, N});
  const int64_t D = state.dim(1);
  return AttentionResidualForward(ctx.exec, {.rows = rows_,
                                             .norm_weight = norm_->value,
                                             .proj = proj_->value.Reshape({D}),
                                             .eps = eps_,
                                             .y = y,
                                             .p = p_,
                                             .rstd = rstd_});
}

absl::Status ResidualMix::Backward(const LayerContext& ctx, const Tensor& dy,
                                   const std::vector<Tensor>& d_bank,
                                   const Tensor& d_state) {
  const int64_t D = dy.dim(1);
  ArenaScope scope(ctx.scratch);
  std::vector<Tensor> d_rows = d_bank;
  d_rows.push_back(d_state);
  return AttentionResidualBackward(
      ctx.exec,
      {.rows = rows_,
       .norm_weight = norm_->value,
       .proj = proj_->value.Reshape({D}),
       .p = p_,
       .rstd = rstd_,
       .dy = dy,
       .drows = d_rows,
       .dnorm_weight = norm_->grad,
       .dproj = proj_->grad.present() ? proj_->grad.Reshape({D}) : Tensor(),
       .slopes = ctx.ScratchParam({dy.dim(0), std::ssize(rows_)})});
}

}  // namespace cadre
