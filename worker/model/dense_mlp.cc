#include "worker/model/dense_mlp.h"

#include "base/status_macros.h"
#include "worker/model/glu_activation.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Layer>> DenseMlp::Create(
    const ActivationSpec& activation, const std::string& at,
    const LayerBuilder& builder) {
  std::unique_ptr<DenseMlp> m(new DenseMlp(activation));
  CADRE_ASSIGN_OR_RETURN(m->gate_, builder.MakeLinear(at + ".gate_proj"));
  CADRE_ASSIGN_OR_RETURN(m->up_, builder.MakeLinear(at + ".up_proj"));
  CADRE_ASSIGN_OR_RETURN(m->down_, builder.MakeLinear(at + ".down_proj"));
  return m;
}

absl::Status DenseMlp::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kDenseMlp);
  const int64_t T = x.dim(0), width = gate_.out();
  x_ = x;
  g_ = ctx.Saved({T, width});
  u_ = ctx.Saved({T, width});
  h_ = ctx.Saved({T, width});
  CADRE_RETURN_IF_ERROR(gate_.Forward(ctx, x, g_));
  CADRE_RETURN_IF_ERROR(up_.Forward(ctx, x, u_));
  CADRE_RETURN_IF_ERROR(
      GluForward(ctx.exec, {.gate = g_,
                            .up = u_,
                            .activation = ToGluActivation(activation_),
                            .h = h_}));
  return down_.Forward(ctx, h_, y);
}

absl::Status DenseMlp::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kDenseMlp);
  ArenaScope scope(ctx.scratch);
  const int64_t T = x_.dim(0), width = gate_.out();
  const Tensor dh = ctx.Scratch({T, width});
  const Tensor dg = ctx.Scratch({T, width}), du = ctx.Scratch({T, width});
  CADRE_RETURN_IF_ERROR(down_.Backward(ctx, h_, dy, dh));
  CADRE_RETURN_IF_ERROR(
      GluBackward(ctx.exec, {.gate = g_,
                             .up = u_,
                             .activation = ToGluActivation(activation_),
                             .dh = dh,
                             .dgate = dg,
                             .dup = du}));
  CADRE_RETURN_IF_ERROR(gate_.Backward(ctx, x_, dg, dx));
  return up_.Backward(ctx, x_, du, dx, /*accumulate=*/true);
}

}  // namespace cadre
