#include "worker/model/kda_mixer.h"

#include "base/status_macros.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda.h"
#include "kernels/short_conv/conv_front.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Layer>> KdaMixer::Create(
    const KdaSpec& spec, double norm_eps, const LayerBuilder& builder) {
  std::unique_ptr<KdaMixer> m(new KdaMixer(spec, norm_eps));
  CADRE_ASSIGN_OR_RETURN(m->q_, builder.MakeLinear("self_attn.q_proj"));
  CADRE_ASSIGN_OR_RETURN(m->k_, builder.MakeLinear("self_attn.k_proj"));
  CADRE_ASSIGN_OR_RETURN(m->v_, builder.MakeLinear("self_attn.v_proj"));
  CADRE_ASSIGN_OR_RETURN(m->conv_, builder.Param("self_attn.conv1d.weight"));
  CADRE_ASSIGN_OR_RETURN(m->f_a_,
                         builder.MakeLinear("self_attn.forget_gate.f_a_proj"));
  CADRE_ASSIGN_OR_RETURN(m->f_b_,
                         builder.MakeLinear("self_attn.forget_gate.f_b_proj"));
  CADRE_ASSIGN_OR_RETURN(m->a_log_,
                         builder.Param("self_attn.forget_gate.A_log"));
  CADRE_ASSIGN_OR_RETURN(m->dt_bias_,
                         builder.Param("self_attn.forget_gate.dt_bias"));
  CADRE_ASSIGN_OR_RETURN(m->b_, builder.MakeLinear("self_attn.b_proj"));
  if (spec.full_rank_output_gate) {
    CADRE_ASSIGN_OR_RETURN(m->g_b_, builder.MakeLinear("self_attn.g_proj"));
  } else {
    CADRE_ASSIGN_OR_RETURN(m->g_a_, builder.MakeLinear("self_attn.g_a_proj"));
    CADRE_ASSIGN_OR_RETURN(m->g_b_, builder.MakeLinear("self_attn.g_b_proj"));
  }
  CADRE_ASSIGN_OR_RETURN(m->o_norm_, builder.Param("self_attn.o_norm.weight"));
  CADRE_ASSIGN_OR_RETURN(m->o_, builder.MakeLinear("self_attn.o_proj"));
  return m;
}

Tensor KdaMixer::ConvPart(const Tensor& fused, int part) const {
  if (!fused.present()) return fused;
  const int64_t channels = spec_.num_heads * spec_.head_dim;
  return fused.Reshape({3 * channels, spec_.conv_kernel})
      .Rows(part * channels, (part + 1) * channels);
}

absl::Status KdaMixer::RunFront(const LayerContext& ctx,
                                const Front& front) const {
  const Tensor post[3] = {front.q, front.k, front.v};
  ConvFrontForwardArgs args{.cu_seqlens = ctx.cu_seqlens};
  for (int part = 0; part < 3; ++part) {
    args.parts.push_back(
        {.x = pre_[part],
         .w = ConvPart(conv_->value, part),
         .y = post[part].Reshape(
             {ctx.num_tokens, spec_.num_heads * spec_.head_dim}),
         .unit_dim = part < 2 ? spec_.head_dim : 0});
  }
  return ConvFrontForward(ctx.exec, args);
}

KdaInputs KdaMixer::RecurrenceInputs(const LayerContext& ctx,
                                     const Front& front) const {
  const int64_t T = ctx.num_tokens, n = spec_.num_heads, d = spec_.head_dim;
  return {.q = front.q,
          .k = front.k,
          .v = front.v,
          .z = z_.Reshape({T, n, d}),
          .beta = beta_,
          .a_log = a_log_->value.Reshape({n}),
          .dt_bias = dt_bias_->value.Reshape({n * d}),
          .cu_seqlens = ctx.cu_seqlens,
          .lower_bound = spec_.gate_lower_bound};
}

absl::Status KdaMixer::RunNorm(const LayerContext& ctx, const Tensor& gate,
                               const Tensor& normed) const {
  return GatedRmsNormForward(ctx.exec,
                             {.x = o_heads_,
                              .gate = gate,
                              .w = o_norm_->value,
                              .y = normed,
                              .eps = norm_eps_,
                              .activation = GateActivation::kSigmoid});
}

absl::Status KdaMixer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads, d = spec_.head_dim;
  x_ = x;
  Linear* const projections[3] = {&q_, &k_, &v_};
  for (int part = 0; part < 3; ++part) {
    pre_[part] = ctx.Saved({T, n * d});
    CADRE_RETURN_IF_ERROR(projections[part]->Forward(ctx, x, pre_[part]));
  }
  ArenaScope scope(ctx.scratch);
  made_ = {};
  const auto cheap = [&ctx, T, n, d] {
    return ctx.replay ? ctx.Saved({T, n, d}) : ctx.Scratch({T, n, d});
  };
  const Front front{.q = cheap(), .k = cheap(), .v = cheap()};
  CADRE_RETURN_IF_ERROR(RunFront(ctx, front));

  f_mid_ = ctx.Saved({T, f_a_.out()});
  z_ = ctx.Saved({T, n * d});
  beta_ = ctx.SavedParam({T, n});
  CADRE_RETURN_IF_ERROR(f_a_.Forward(ctx, x, f_mid_));
  CADRE_RETURN_IF_ERROR(f_b_.Forward(ctx, f_mid_, z_));
  CADRE_RETURN_IF_ERROR(b_.Forward(ctx, x, beta_));
  o_heads_ = ctx.Saved({T, n, d});
  {
    ArenaScope workspace(ctx.scratch);
    const KdaInputs in = RecurrenceInputs(ctx, front);
    CADRE_RETURN_IF_ERROR(
        KdaForward(ctx.exec, {.in = in,
                              .o = o_heads_,
                              .workspace = ctx.ScratchBytes(
                                  KdaForwardWorkspaceBytes(ctx.exec, in))}));
  }

  // Over q and k, where nothing reads them any more.
  Tensor gate = ctx.replay ? ctx.Saved({T, n, d}) : front.k;
  const Tensor normed = ctx.replay ? ctx.Saved({T, n, d}) : front.q;
  if (spec_.full_rank_output_gate) {
    if (!ctx.replay) gate = ctx.Saved({T, n, d});
    CADRE_RETURN_IF_ERROR(g_b_.Forward(ctx, x, gate.Reshape({T, n * d})));
  } else {
    g_mid_ = ctx.Saved({T, g_a_.out()});
    CADRE_RETURN_IF_ERROR(g_a_.Forward(ctx, x, g_mid_));
    CADRE_RETURN_IF_ERROR(g_b_.Forward(ctx, g_mid_, gate.Reshape({T, n * d})));
  }
  if (ctx.replay) made_ = {.front = front, .normed = normed};
  gate_ = ctx.replay || spec_.full_rank_output_gate ? gate : Tensor();
  CADRE_RETURN_IF_ERROR(RunNorm(ctx, gate, normed));
  return o_.Forward(ctx, normed.Reshape({T, n * d}), y);
}

absl::Status KdaMixer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads, d = spec_.head_dim;
  ArenaScope scope(ctx.scratch);
  Tensor gate = gate_, normed = made_.normed;
  if (!normed.present()) {
    normed = ctx.Scratch({T, n, d});
    if (!gate.present()) {
      gate = ctx.Scratch({T, n, d});
      CADRE_RETURN_IF_ERROR(
          g_b_.ForwardAgain(ctx, g_mid_, gate.Reshape({T, n * d})));
    }
    CADRE_RETURN_IF_ERROR(RunNorm(ctx, gate, normed));
  }
  const Tensor d_normed = ctx.Scratch({T, n * d});
  const Tensor d_heads = ctx.Scratch({T, n, d});
  const Tensor d_gate = ctx.Scratch({T, n * d});
  CADRE_RETURN_IF_ERROR(
      o_.Backward(ctx, normed.Reshape({T, n * d}), dy, d_normed));
  CADRE_RETURN_IF_ERROR(
      GatedRmsNormBackward(ctx.exec, {.x = o_heads_,
                                      .gate = gate,
                                      .w = o_norm_->value,
                                      .dy = d_normed.Reshape({T, n, d}),
                                      .dx = d_heads,
                                      .dgate = d_gate.Reshape({T, n, d}),
                                      .dw = o_norm_->grad,
                                      .eps = norm_eps_,
                                      .activation = GateActivation::kSigmoid}));
  if (spec_.full_rank_output_gate) {
    CADRE_RETURN_IF_ERROR(g_b_.Backward(ctx, x_, d_gate, dx));
  } else {
    const Tensor d_mid = ctx.Scratch({T, g_a_.out()});
    CADRE_RETURN_IF_ERROR(g_b_.Backward(ctx, g_mid_, d_gate, d_mid));
    CADRE_RETURN_IF_ERROR(g_a_.Backward(ctx, x_, d_mid, dx));
  }

  const Tensor dq = ctx.Scratch({T, n, d}), dk = ctx.Scratch({T, n, d});
  const Tensor dv = ctx.Scratch({T, n, d}), dz = ctx.Scratch({T, n * d});
  const Tensor d_beta = ctx.ScratchParam({T, n});
  const auto flat = [](const Tensor& grad, int64_t size) {
    return grad.present() ? grad.Reshape({size}) : grad;
  };
  Front front = made_.front;
  if (!front.q.present()) {
    // Where nothing is needed from until the convolutions' gradients.
    front = {.q = normed,
             .k = d_normed.Reshape({T, n, d}),
             .v = d_gate.Reshape({T, n, d})};
    CADRE_RETURN_IF_ERROR(RunFront(ctx, front));
  }
  const KdaInputs in = RecurrenceInputs(ctx, front);
  CADRE_RETURN_IF_ERROR(
      KdaBackward(ctx.exec, {.in = in,
                             .d_o = d_heads,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv,
                             .dz = dz.Reshape({T, n, d}),
                             .dbeta = d_beta,
                             .da_log = flat(a_log_->grad, n),
                             .ddt_bias = flat(dt_bias_->grad, n * d),
                             .workspace = ctx.ScratchBytes(
                                 KdaBackwardWorkspaceBytes(ctx.exec, in))}));
  CADRE_RETURN_IF_ERROR(b_.Backward(ctx, x_, d_beta, dx, /*accumulate=*/true));
  const Tensor d_mid = ctx.Scratch({T, f_a_.out()});
  CADRE_RETURN_IF_ERROR(f_b_.Backward(ctx, f_mid_, dz, d_mid));
  CADRE_RETURN_IF_ERROR(f_a_.Backward(ctx, x_, d_mid, dx, /*accumulate=*/true));

  // The gradients in front of the convolutions go where nothing is needed from
  // any more.
  const Tensor d_post[3] = {dq, dk, dv};
  const Tensor d_pre[3] = {d_normed, d_heads.Reshape({T, n * d}), d_gate};
  Linear* const projections[3] = {&q_, &k_, &v_};
  ConvFrontBackwardArgs back{.cu_seqlens = ctx.cu_seqlens};
  for (int part = 0; part < 3; ++part) {
    back.parts.push_back({.x = pre_[part],
                          .w = ConvPart(conv_->value, part),
                          .dy = d_post[part].Reshape({T, n * d}),
                          .dx = d_pre[part],
                          .dw = ConvPart(conv_->grad, part),
                          .unit_dim = part < 2 ? d : 0});
  }
  CADRE_RETURN_IF_ERROR(ConvFrontBackward(ctx.exec, back));
  for (int part = 0; part < 3; ++part) {
    CADRE_RETURN_IF_ERROR(projections[part]->Backward(ctx, x_, d_pre[part], dx,
                                                      /*accumulate=*/true));
  }
  return absl::OkStatus();
}

}  // namespace cadre
