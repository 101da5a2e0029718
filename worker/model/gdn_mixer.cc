#include "worker/model/gdn_mixer.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gdn/gdn.h"
#include "kernels/short_conv/conv_front.h"

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

ColumnGroups GdnMixer::At(Part part) const {
  const int64_t k = spec_.key_head_dim;
  if (!grouped()) {
    return part == kGate ? ColumnGroups{}
                         : ColumnGroups{.first = int64_t{part} * key_dim(),
                                        .group = Channels(part)};
  }
  // Of a key head: [q | k | v of its value heads | z of these].
  const int64_t v = value_dim() / spec_.num_key_heads;
  const int64_t starts[] = {0, k, 2 * k, 2 * k + v};
  return {.first = starts[part],
          .group = part == kQuery || part == kKey ? k : v,
          .pitch = 2 * k + 2 * v};
}

Tensor GdnMixer::ConvPart(const Tensor& conv, Part part) const {
  if (!conv.present()) return conv;
  const int64_t begin = int64_t{part} * key_dim();
  return conv.Reshape({2 * key_dim() + value_dim(), spec_.conv_kernel})
      .Rows(begin, begin + Channels(part));
}

std::vector<ConvFrontMove> GdnMixer::Logits(const Tensor& ba,
                                            const Tensor& beta,
                                            const Tensor& decay) const {
  // Of a key head: [b | a] of its value heads.
  const int64_t n = spec_.num_value_heads / spec_.num_key_heads;
  return {{.wide = ba, .narrow = beta, .at = {0, n, 2 * n}},
          {.wide = ba, .narrow = decay, .at = {n, n, 2 * n}}};
}

absl::Status GdnMixer::RunFront(const LayerContext& ctx, const Front& front,
                                std::vector<ConvFrontMove> moves) const {
  const Tensor post[] = {front.q, front.k, front.v};
  ConvFrontForwardArgs args{.cu_seqlens = ctx.cu_seqlens,
                            .moves = std::move(moves)};
  for (const Part part : {kQuery, kKey, kValue}) {
    args.parts.push_back(
        {.x = pre_,
         .w = ConvPart(conv_->value, part),
         .y = post[part].Reshape({ctx.num_tokens, Channels(part)}),
         .unit_dim = part == kValue ? 0 : spec_.key_head_dim,
         .at = At(part)});
  }
  return ConvFrontForward(ctx.exec, args);
}

GdnInputs GdnMixer::RecurrenceInputs(const LayerContext& ctx,
                                     const Front& front) const {
  const int64_t Hv = spec_.num_value_heads;
  return {.q = front.q,
          .k = front.k,
          .v = front.v,
          .a = decay_,
          .beta = beta_,
          .a_log = a_log_->value.Reshape({Hv}),
          .dt_bias = dt_bias_->value.Reshape({Hv}),
          .cu_seqlens = ctx.cu_seqlens};
}

absl::Status GdnMixer::RunNorm(const LayerContext& ctx,
                               const Tensor& normed) const {
  return GatedRmsNormForward(ctx.exec, {.x = o_heads_,
                                        .gate = gate_,
                                        .w = norm_->value,
                                        .y = normed,
                                        .eps = norm_eps_,
                                        .activation = GateActivation::kSilu,
                                        .gate_at = At(kGate)});
}

absl::Status GdnMixer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens;
  const int64_t Hk = spec_.num_key_heads, Hv = spec_.num_value_heads;
  const int64_t K = spec_.key_head_dim, V = spec_.value_head_dim;
  x_ = x;
  made_ = {};
  pre_ = ctx.Saved({T, pre_dim()});
  beta_ = ctx.SavedParam({T, Hv});
  decay_ = ctx.SavedParam({T, Hv});
  ArenaScope scope(ctx.scratch);
  std::vector<ConvFrontMove> moves;
  if (grouped()) {
    gate_ = pre_;
    const Tensor ba = ctx.ScratchParam({T, ba_.out()});
    CADRE_RETURN_IF_ERROR(qkvz_.Forward(ctx, x, pre_));
    CADRE_RETURN_IF_ERROR(ba_.Forward(ctx, x, ba));
    moves = Logits(ba, beta_, decay_);
  } else {
    gate_ = ctx.Saved({T, Hv, V});
    CADRE_RETURN_IF_ERROR(qkv_.Forward(ctx, x, pre_));
    CADRE_RETURN_IF_ERROR(z_.Forward(ctx, x, gate_.Reshape({T, value_dim()})));
    CADRE_RETURN_IF_ERROR(b_.Forward(ctx, x, beta_));
    CADRE_RETURN_IF_ERROR(a_.Forward(ctx, x, decay_));
  }
  const auto cheap = [&ctx, T](int64_t heads, int64_t width) {
    return ctx.replay ? ctx.Saved({T, heads, width})
                      : ctx.Scratch({T, heads, width});
  };
  const Front front{.q = cheap(Hk, K), .k = cheap(Hk, K), .v = cheap(Hv, V)};
  CADRE_RETURN_IF_ERROR(RunFront(ctx, front, std::move(moves)));
  o_heads_ = ctx.Saved({T, Hv, V});
  {
    ArenaScope workspace(ctx.scratch);
    const GdnInputs in = RecurrenceInputs(ctx, front);
    CADRE_RETURN_IF_ERROR(
        GdnForward(ctx.exec, {.in = in,
                              .o = o_heads_,
                              .workspace = ctx.ScratchBytes(
                                  GdnForwardWorkspaceBytes(ctx.exec, in))}));
  }
  // Over v, where nothing reads it any more.
  const Tensor normed = ctx.replay ? ctx.Saved({T, Hv, V}) : front.v;
  if (ctx.replay) made_ = {.front = front, .normed = normed};
  CADRE_RETURN_IF_ERROR(RunNorm(ctx, normed));
  return out_.Forward(ctx, normed.Reshape({T, value_dim()}), y);
}

absl::Status GdnMixer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens;
  const int64_t Hk = spec_.num_key_heads, Hv = spec_.num_value_heads;
  const int64_t K = spec_.key_head_dim, V = spec_.value_head_dim;
  ArenaScope scope(ctx.scratch);
  const auto flat = [](const Tensor& grad) {
    return grad.present() ? grad.Reshape({grad.num_elements()}) : grad;
  };
  Tensor normed = made_.normed;
  if (!normed.present()) {
    normed = ctx.Scratch({T, Hv, V});
    CADRE_RETURN_IF_ERROR(RunNorm(ctx, normed));
  }
  const Tensor d_normed = ctx.Scratch({T, Hv, V});
  const Tensor d_heads = ctx.Scratch({T, Hv, V});
  const Tensor d_pre = ctx.Scratch({T, pre_dim()});
  const Tensor d_gate = grouped() ? d_pre : ctx.Scratch({T, Hv, V});
  CADRE_RETURN_IF_ERROR(out_.Backward(ctx, normed.Reshape({T, value_dim()}), dy,
                                      d_normed.Reshape({T, value_dim()})));
  CADRE_RETURN_IF_ERROR(
      GatedRmsNormBackward(ctx.exec, {.x = o_heads_,
                                      .gate = gate_,
                                      .w = norm_->value,
                                      .dy = d_normed,
                                      .dx = d_heads,
                                      .dgate = d_gate,
                                      .dw = norm_->grad,
                                      .eps = norm_eps_,
                                      .activation = GateActivation::kSilu,
                                      .gate_at = At(kGate)}));

  const Tensor dq = ctx.Scratch({T, Hk, K}), dk = ctx.Scratch({T, Hk, K});
  const Tensor dv = ctx.Scratch({T, Hv, V});
  const Tensor d_beta = ctx.ScratchParam({T, Hv});
  const Tensor d_decay = ctx.ScratchParam({T, Hv});
  Front front = made_.front;
  if (!front.q.present()) {
    // v where nothing is needed from any more.
    front = {.q = ctx.Scratch({T, Hk, K}),
             .k = ctx.Scratch({T, Hk, K}),
             .v = normed};
    CADRE_RETURN_IF_ERROR(RunFront(ctx, front, {}));
  }
  {
    ArenaScope workspace(ctx.scratch);
    const GdnInputs in = RecurrenceInputs(ctx, front);
    CADRE_RETURN_IF_ERROR(
        GdnBackward(ctx.exec, {.in = in,
                               .d_o = d_heads,
                               .dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .da = d_decay,
                               .dbeta = d_beta,
                               .da_log = flat(a_log_->grad),
                               .ddt_bias = flat(dt_bias_->grad),
                               .workspace = ctx.ScratchBytes(
                                   GdnBackwardWorkspaceBytes(ctx.exec, in))}));
  }

  const Tensor d_post[] = {dq, dk, dv};
  const Tensor spare[] = {front.q, front.k, front.v};
  ConvFrontBackwardArgs back{.cu_seqlens = ctx.cu_seqlens};
  for (const Part part : {kQuery, kKey, kValue}) {
    back.parts.push_back({.x = pre_,
                          .w = ConvPart(conv_->value, part),
                          .dy = d_post[part].Reshape({T, Channels(part)}),
                          .dx = d_pre,
                          .dw = ConvPart(conv_->grad, part),
                          .unit_dim = part == kValue ? 0 : K,
                          .at = At(part),
                          .spare = spare[part].Reshape({T, Channels(part)})});
  }
  if (grouped()) {
    const Tensor d_ba = ctx.ScratchParam({T, ba_.out()});
    back.moves = Logits(d_ba, d_beta, d_decay);
    CADRE_RETURN_IF_ERROR(ConvFrontBackward(ctx.exec, back));
    CADRE_RETURN_IF_ERROR(qkvz_.Backward(ctx, x_, d_pre, dx));
    return ba_.Backward(ctx, x_, d_ba, dx, /*accumulate=*/true);
  }
  CADRE_RETURN_IF_ERROR(ConvFrontBackward(ctx.exec, back));
  CADRE_RETURN_IF_ERROR(qkv_.Backward(ctx, x_, d_pre, dx));
  CADRE_RETURN_IF_ERROR(z_.Backward(ctx, x_, d_gate.Reshape({T, value_dim()}),
                                    dx,
                                    /*accumulate=*/true));
  CADRE_RETURN_IF_ERROR(b_.Backward(ctx, x_, d_beta, dx, /*accumulate=*/true));
  return a_.Backward(ctx, x_, d_decay, dx, /*accumulate=*/true);
}

}  // namespace cadre
