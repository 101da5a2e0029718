#include "worker/model/gdn_mixer.h"

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gdn/gdn.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Layer>> GdnMixer::Create(
    const GdnSpec& spec, double norm_eps, const LayerBuilder& builder) {
  std::unique_ptr<GdnMixer> m(new GdnMixer(spec, norm_eps));
  const std::string at = "linear_attn.";
  if (spec.projections == GdnSpec::Projections::kGroupedQkvzBa) {
    CADRE_ASSIGN_OR_RETURN(m->qkvz_, builder.MakeLinear(at + "in_proj_qkvz"));
    CADRE_ASSIGN_OR_RETURN(m->ba_, builder.MakeLinear(at + "in_proj_ba"));
  } else {
    CADRE_ASSIGN_OR_RETURN(m->qkv_, builder.MakeLinear(at + "in_proj_qkv"));
    CADRE_ASSIGN_OR_RETURN(m->z_, builder.MakeLinear(at + "in_proj_z"));
    CADRE_ASSIGN_OR_RETURN(m->b_, builder.MakeLinear(at + "in_proj_b"));
    CADRE_ASSIGN_OR_RETURN(m->a_, builder.MakeLinear(at + "in_proj_a"));
  }
  CADRE_ASSIGN_OR_RETURN(m->conv_, builder.Param(at + "conv1d.weight"));
  CADRE_ASSIGN_OR_RETURN(m->a_log_, builder.Param(at + "A_log"));
  CADRE_ASSIGN_OR_RETURN(m->dt_bias_, builder.Param(at + "dt_bias"));
  CADRE_ASSIGN_OR_RETURN(m->norm_, builder.Param(at + "norm.weight"));
  CADRE_ASSIGN_OR_RETURN(m->out_, builder.MakeLinear(at + "out_proj"));
  return m;
}

absl::Status GdnMixer::Regroup(const LayerContext& ctx, const Tensor& qkvz,
                               const Tensor& ba, const Parts& parts,
                               bool split) const {
  const int64_t T = ctx.num_tokens, groups = spec_.num_key_heads;
  const int64_t per_group = spec_.num_value_heads / groups;
  const int64_t k = spec_.key_head_dim, v = per_group * spec_.value_head_dim;
  const auto move = [&](const Tensor& grouped, int64_t from, const Tensor& part,
                        int64_t to, int64_t width) {
    return split ? CopyColumns(ctx.exec, {.src = grouped,
                                          .dst = part,
                                          .rows = T,
                                          .src_column = from,
                                          .dst_column = to,
                                          .width = width})
                 : CopyColumns(ctx.exec, {.src = part,
                                          .dst = grouped,
                                          .rows = T,
                                          .src_column = to,
                                          .dst_column = from,
                                          .width = width});
  };
  for (int64_t g = 0; g < groups; ++g) {
    // A group of qkvz: [q | k | v of its value heads | z of these].
    const int64_t at = g * (2 * k + 2 * v);
    CADRE_RETURN_IF_ERROR(move(qkvz, at, parts.qkv, g * k, k));
    CADRE_RETURN_IF_ERROR(move(qkvz, at + k, parts.qkv, key_dim() + g * k, k));
    CADRE_RETURN_IF_ERROR(
        move(qkvz, at + 2 * k, parts.qkv, 2 * key_dim() + g * v, v));
    CADRE_RETURN_IF_ERROR(move(qkvz, at + 2 * k + v, parts.gate, g * v, v));
    // A group of ba: [b | a] of its value heads.
    CADRE_RETURN_IF_ERROR(
        move(ba, 2 * g * per_group, parts.beta, g * per_group, per_group));
    CADRE_RETURN_IF_ERROR(
        move(ba, (2 * g + 1) * per_group, parts.a, g * per_group, per_group));
  }
  return absl::OkStatus();
}

absl::Status GdnMixer::Project(const LayerContext& ctx, const Tensor& x) {
  const int64_t T = ctx.num_tokens, heads = spec_.num_value_heads;
  pre_ = ctx.Saved({T, 2 * key_dim() + value_dim()});
  gate_ = ctx.Saved({T, value_dim()});
  beta_ = ctx.SavedParam({T, heads});
  decay_ = ctx.SavedParam({T, heads});
  if (spec_.projections == GdnSpec::Projections::kGroupedQkvzBa) {
    ArenaScope scope(ctx.scratch);
    const Tensor qkvz = ctx.Scratch({T, qkvz_.out()});
    const Tensor ba = ctx.ScratchParam({T, ba_.out()});
    CADRE_RETURN_IF_ERROR(qkvz_.Forward(ctx, x, qkvz));
    CADRE_RETURN_IF_ERROR(ba_.Forward(ctx, x, ba));
    return Regroup(ctx, qkvz, ba,
                   {.qkv = pre_, .gate = gate_, .beta = beta_, .a = decay_},
                   /*split=*/true);
  }
  CADRE_RETURN_IF_ERROR(qkv_.Forward(ctx, x, pre_));
  CADRE_RETURN_IF_ERROR(z_.Forward(ctx, x, gate_));
  CADRE_RETURN_IF_ERROR(b_.Forward(ctx, x, beta_));
  return a_.Forward(ctx, x, decay_);
}

absl::Status GdnMixer::ProjectBackward(const LayerContext& ctx, const Parts& d,
                                       const Tensor& dx) {
  if (spec_.projections == GdnSpec::Projections::kGroupedQkvzBa) {
    const Tensor d_qkvz = ctx.Scratch({ctx.num_tokens, qkvz_.out()});
    const Tensor d_ba = ctx.ScratchParam({ctx.num_tokens, ba_.out()});
    CADRE_RETURN_IF_ERROR(Regroup(ctx, d_qkvz, d_ba, d, /*split=*/false));
    CADRE_RETURN_IF_ERROR(qkvz_.Backward(ctx, x_, d_qkvz, dx));
    return ba_.Backward(ctx, x_, d_ba, dx, /*accumulate=*/true);
  }
  CADRE_RETURN_IF_ERROR(qkv_.Backward(ctx, x_, d.qkv, dx));
  CADRE_RETURN_IF_ERROR(z_.Backward(ctx, x_, d.gate, dx, /*accumulate=*/true));
  CADRE_RETURN_IF_ERROR(b_.Backward(ctx, x_, d.beta, dx, /*accumulate=*/true));
  return a_.Backward(ctx, x_, d.a, dx, /*accumulate=*/true);
}

GdnInputs GdnMixer::RecurrenceInputs(const LayerContext& ctx) const {
  const int64_t Hv = spec_.num_value_heads;
  return {.q = q_unit_,
          .k = k_unit_,
          .v = v_,
          .a = decay_,
          .beta = beta_,
          .a_log = a_log_->value.Reshape({Hv}),
          .dt_bias = dt_bias_->value.Reshape({Hv}),
          .cu_seqlens = ctx.cu_seqlens};
}

absl::Status GdnMixer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens;
  const int64_t Hk = spec_.num_key_heads, Hv = spec_.num_value_heads;
  const int64_t K = spec_.key_head_dim, V = spec_.value_head_dim;
  const int64_t channels = 2 * key_dim() + value_dim();
  x_ = x;
  CADRE_RETURN_IF_ERROR(Project(ctx, x));
  post_ = ctx.Saved({T, channels});
  CADRE_RETURN_IF_ERROR(ShortConvForward(
      ctx.exec, {.x = pre_,
                 .w = conv_->value.Reshape({channels, spec_.conv_kernel}),
                 .cu_seqlens = ctx.cu_seqlens,
                 .y = post_}));
  q_raw_ = ctx.Saved({T, Hk, K});
  k_raw_ = ctx.Saved({T, Hk, K});
  q_unit_ = ctx.Saved({T, Hk, K});
  k_unit_ = ctx.Saved({T, Hk, K});
  v_ = ctx.Saved({T, Hv, V});
  const Tensor parts[3] = {q_raw_, k_raw_, v_};
  const int64_t starts[3] = {0, key_dim(), 2 * key_dim()};
  for (int i = 0; i < 3; ++i) {
    CADRE_RETURN_IF_ERROR(
        CopyColumns(ctx.exec, {.src = post_,
                               .dst = parts[i],
                               .rows = T,
                               .src_column = starts[i],
                               .width = i < 2 ? key_dim() : value_dim()}));
  }
  CADRE_RETURN_IF_ERROR(L2NormForward(ctx.exec, {.x = q_raw_, .y = q_unit_}));
  CADRE_RETURN_IF_ERROR(L2NormForward(ctx.exec, {.x = k_raw_, .y = k_unit_}));
  o_heads_ = ctx.Saved({T, Hv, V});
  {
    ArenaScope scope(ctx.scratch);
    const GdnInputs in = RecurrenceInputs(ctx);
    CADRE_RETURN_IF_ERROR(
        GdnForward(ctx.exec, {.in = in,
                              .o = o_heads_,
                              .workspace = ctx.ScratchBytes(
                                  GdnForwardWorkspaceBytes(ctx.exec, in))}));
  }
  normed_ = ctx.Saved({T, Hv * V});
  CADRE_RETURN_IF_ERROR(
      GatedRmsNormForward(ctx.exec, {.x = o_heads_,
                                     .gate = gate_.Reshape({T, Hv, V}),
                                     .w = norm_->value,
                                     .y = normed_.Reshape({T, Hv, V}),
                                     .eps = norm_eps_,
                                     .activation = GateActivation::kSilu}));
  return out_.Forward(ctx, normed_, y);
}

absl::Status GdnMixer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens;
  const int64_t Hk = spec_.num_key_heads, Hv = spec_.num_value_heads;
  const int64_t K = spec_.key_head_dim, V = spec_.value_head_dim;
  const int64_t channels = 2 * key_dim() + value_dim();
  ArenaScope scope(ctx.scratch);
  const auto flat = [](const Tensor& grad,
                       std::initializer_list<int64_t> dims) {
    return grad.present() ? grad.Reshape(dims) : grad;
  };
  const Tensor d_normed = ctx.Scratch({T, Hv * V});
  const Tensor d_heads = ctx.Scratch({T, Hv, V});
  Parts d{.qkv = ctx.Scratch({T, channels}),
          .gate = ctx.Scratch({T, Hv * V}),
          .beta = ctx.ScratchParam({T, Hv}),
          .a = ctx.ScratchParam({T, Hv})};
  CADRE_RETURN_IF_ERROR(out_.Backward(ctx, normed_, dy, d_normed));
  CADRE_RETURN_IF_ERROR(
      GatedRmsNormBackward(ctx.exec, {.x = o_heads_,
                                      .gate = gate_.Reshape({T, Hv, V}),
                                      .w = norm_->value,
                                      .dy = d_normed.Reshape({T, Hv, V}),
                                      .dx = d_heads,
                                      .dgate = d.gate.Reshape({T, Hv, V}),
                                      .dw = norm_->grad,
                                      .eps = norm_eps_,
                                      .activation = GateActivation::kSilu}));
  const Tensor dq = ctx.Scratch({T, Hk, K}), dk = ctx.Scratch({T, Hk, K});
  const Tensor dv = ctx.Scratch({T, Hv, V});
  const GdnInputs in = RecurrenceInputs(ctx);
  CADRE_RETURN_IF_ERROR(
      GdnBackward(ctx.exec, {.in = in,
                             .d_o = d_heads,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv,
                             .da = d.a,
                             .dbeta = d.beta,
                             .da_log = flat(a_log_->grad, {Hv}),
                             .ddt_bias = flat(dt_bias_->grad, {Hv}),
                             .workspace = ctx.ScratchBytes(
                                 GdnBackwardWorkspaceBytes(ctx.exec, in))}));
  CADRE_RETURN_IF_ERROR(
      L2NormBackward(ctx.exec, {.x = q_raw_, .dy = dq, .dx = dq}));
  CADRE_RETURN_IF_ERROR(
      L2NormBackward(ctx.exec, {.x = k_raw_, .dy = dk, .dx = dk}));
  const Tensor d_post = ctx.Scratch({T, channels});
  const Tensor parts[3] = {dq, dk, dv};
  const int64_t starts[3] = {0, key_dim(), 2 * key_dim()};
  for (int i = 0; i < 3; ++i) {
    CADRE_RETURN_IF_ERROR(
        CopyColumns(ctx.exec, {.src = parts[i],
                               .dst = d_post,
                               .rows = T,
                               .dst_column = starts[i],
                               .width = i < 2 ? key_dim() : value_dim()}));
  }
  CADRE_RETURN_IF_ERROR(ShortConvBackward(
      ctx.exec, {.x = pre_,
                 .w = conv_->value.Reshape({channels, spec_.conv_kernel}),
                 .cu_seqlens = ctx.cu_seqlens,
                 .dy = d_post,
                 .dx = d.qkv,
                 .dw = flat(conv_->grad, {channels, spec_.conv_kernel})}));
  return ProjectBackward(ctx, d, dx);
}

}  // namespace cadre
