#include "worker/model/gqa_mixer.h"

#include "base/status_macros.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/elementwise.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Layer>> GqaMixer::Create(
    const GqaSpec& spec, double norm_eps, bool norm_unit_offset,
    const LayerBuilder& builder) {
  std::unique_ptr<GqaMixer> m(new GqaMixer(spec));
  CADRE_ASSIGN_OR_RETURN(m->q_, builder.MakeLinear("self_attn.q_proj"));
  CADRE_ASSIGN_OR_RETURN(m->k_, builder.MakeLinear("self_attn.k_proj"));
  CADRE_ASSIGN_OR_RETURN(m->v_, builder.MakeLinear("self_attn.v_proj"));
  CADRE_ASSIGN_OR_RETURN(m->o_, builder.MakeLinear("self_attn.o_proj"));
  CADRE_ASSIGN_OR_RETURN(Parameter * q_norm,
                         builder.Param("self_attn.q_norm.weight"));
  CADRE_ASSIGN_OR_RETURN(Parameter * k_norm,
                         builder.Param("self_attn.k_norm.weight"));
  m->q_norm_ = Norm(q_norm, norm_eps, norm_unit_offset);
  m->k_norm_ = Norm(k_norm, norm_eps, norm_unit_offset);
  m->rope_ = RopeTable(spec.rope);
  return m;
}

absl::Status GqaMixer::Prepare(const LayerContext& ctx, Norm* norm,
                               const Tensor& raw, const Tensor& heads) const {
  CADRE_RETURN_IF_ERROR(norm->Forward(ctx, raw, heads));
  return rope_.Forward(ctx, heads, 0);
}

// d holds the gradient of `heads`, then of `raw`.
absl::Status GqaMixer::PrepareBackward(const LayerContext& ctx, Norm* norm,
                                       const Tensor& raw,
                                       const Tensor& d) const {
  CADRE_RETURN_IF_ERROR(rope_.Backward(ctx, d, 0));
  return norm->Backward(ctx, raw, d, d);
}

absl::Status GqaMixer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  const int64_t n_kv = spec_.num_kv_heads, D = spec_.head_dim;
  x_ = x;
  q_raw_ = ctx.Saved({T, n, D});
  k_raw_ = ctx.Saved({T, n_kv, D});
  q_heads_ = ctx.Saved({T, n, D});
  k_heads_ = ctx.Saved({T, n_kv, D});
  v_heads_ = ctx.Saved({T, n_kv, D});
  if (spec_.output_gate) {
    // Rows of q_proj: per head [query D | gate D].
    gate_ = ctx.Saved({T, n * D});
    ArenaScope scope(ctx.scratch);
    const Tensor both = ctx.Scratch({T, 2 * n * D});
    CADRE_RETURN_IF_ERROR(q_.Forward(ctx, x, both));
    CADRE_RETURN_IF_ERROR(CopyColumns(
        ctx.exec, {.src = both, .dst = q_raw_, .rows = T * n, .width = D}));
    CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = both,
                                                 .dst = gate_,
                                                 .rows = T * n,
                                                 .src_column = D,
                                                 .width = D}));
  } else {
    CADRE_RETURN_IF_ERROR(q_.Forward(ctx, x, q_raw_.Reshape({T, n * D})));
  }
  CADRE_RETURN_IF_ERROR(k_.Forward(ctx, x, k_raw_.Reshape({T, n_kv * D})));
  CADRE_RETURN_IF_ERROR(v_.Forward(ctx, x, v_heads_.Reshape({T, n_kv * D})));
  CADRE_RETURN_IF_ERROR(Prepare(ctx, &q_norm_, q_raw_, q_heads_));
  CADRE_RETURN_IF_ERROR(Prepare(ctx, &k_norm_, k_raw_, k_heads_));
  o_heads_ = ctx.Saved({T, n, D});
  lse_ = ctx.SavedParam({T, n});
  CADRE_RETURN_IF_ERROR(
      AttentionForward(ctx.exec, {.q = q_heads_,
                                  .k = k_heads_,
                                  .v = v_heads_,
                                  .cu_seqlens = ctx.cu_seqlens,
                                  .scale = spec_.softmax_scale,
                                  .o = o_heads_,
                                  .lse = lse_}));
  const Tensor flat = o_heads_.Reshape({T, n * D});
  if (!spec_.output_gate) return o_.Forward(ctx, flat, y);
  gated_ = ctx.Saved({T, n * D});
  CADRE_RETURN_IF_ERROR(SigmoidGateForward(ctx.exec, flat, gate_, gated_));
  return o_.Forward(ctx, gated_, y);
}

absl::Status GqaMixer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  const int64_t n_kv = spec_.num_kv_heads, D = spec_.head_dim;
  ArenaScope scope(ctx.scratch);
  const Tensor flat = o_heads_.Reshape({T, n * D});
  const Tensor d_heads = ctx.Scratch({T, n * D});
  const Tensor d_gate = ctx.Scratch({T, n * D});
  CADRE_RETURN_IF_ERROR(
      o_.Backward(ctx, spec_.output_gate ? gated_ : flat, dy, d_heads));
  if (spec_.output_gate) {
    CADRE_RETURN_IF_ERROR(SigmoidGateBackward(ctx.exec, {.x = flat,
                                                         .gate = gate_,
                                                         .dy = d_heads,
                                                         .dx = d_heads,
                                                         .dgate = d_gate}));
  }
  const Tensor dq = ctx.Scratch({T, n, D});
  const Tensor dk = ctx.Scratch({T, n_kv, D}), dv = ctx.Scratch({T, n_kv, D});
  CADRE_RETURN_IF_ERROR(
      AttentionBackward(ctx.exec, {.q = q_heads_,
                                   .k = k_heads_,
                                   .v = v_heads_,
                                   .cu_seqlens = ctx.cu_seqlens,
                                   .scale = spec_.softmax_scale,
                                   .o = o_heads_,
                                   .lse = lse_,
                                   .d_o = d_heads.Reshape({T, n, D}),
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv}));
  CADRE_RETURN_IF_ERROR(PrepareBackward(ctx, &q_norm_, q_raw_, dq));
  CADRE_RETURN_IF_ERROR(PrepareBackward(ctx, &k_norm_, k_raw_, dk));
  if (spec_.output_gate) {
    const Tensor d_both = ctx.Scratch({T, 2 * n * D});
    CADRE_RETURN_IF_ERROR(CopyColumns(
        ctx.exec, {.src = dq, .dst = d_both, .rows = T * n, .width = D}));
    CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = d_gate,
                                                 .dst = d_both,
                                                 .rows = T * n,
                                                 .dst_column = D,
                                                 .width = D}));
    CADRE_RETURN_IF_ERROR(q_.Backward(ctx, x_, d_both, dx));
  } else {
    CADRE_RETURN_IF_ERROR(q_.Backward(ctx, x_, dq.Reshape({T, n * D}), dx));
  }
  CADRE_RETURN_IF_ERROR(
      k_.Backward(ctx, x_, dk.Reshape({T, n_kv * D}), dx, /*accumulate=*/true));
  return v_.Backward(ctx, x_, dv.Reshape({T, n_kv * D}), dx,
                     /*accumulate=*/true);
}

}  // namespace cadre
