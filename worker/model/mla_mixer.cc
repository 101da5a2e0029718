#include "worker/model/mla_mixer.h"

#include "base/status_macros.h"
#include "kernels/attention/attention.h"
#include "kernels/elementwise/elementwise.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<MlaMixer>> MlaMixer::Create(
    const MlaSpec& spec, const LayerBuilder& builder,
    const Indexer* shared_indexer) {
  std::unique_ptr<MlaMixer> m(new MlaMixer(spec));
  const auto norm = [&](const char* name) -> absl::StatusOr<Norm> {
    CADRE_ASSIGN_OR_RETURN(Parameter * weight, builder.Param(name));
    return Norm(weight, spec.latent_norm_eps, /*unit_offset=*/false);
  };
  if (spec.q_lora_rank > 0) {
    CADRE_ASSIGN_OR_RETURN(m->q_a_, builder.MakeLinear("self_attn.q_a_proj"));
    CADRE_ASSIGN_OR_RETURN(m->q_norm_, norm("self_attn.q_a_layernorm.weight"));
    CADRE_ASSIGN_OR_RETURN(m->q_b_, builder.MakeLinear("self_attn.q_b_proj"));
  } else {
    CADRE_ASSIGN_OR_RETURN(m->q_, builder.MakeLinear("self_attn.q_proj"));
  }
  CADRE_ASSIGN_OR_RETURN(m->kv_a_,
                         builder.MakeLinear("self_attn.kv_a_proj_with_mqa"));
  CADRE_ASSIGN_OR_RETURN(m->kv_norm_, norm("self_attn.kv_a_layernorm.weight"));
  CADRE_ASSIGN_OR_RETURN(m->kv_b_, builder.MakeLinear("self_attn.kv_b_proj"));
  if (spec.output_gate) {
    CADRE_ASSIGN_OR_RETURN(m->g_, builder.MakeLinear("self_attn.g_proj"));
  }
  CADRE_ASSIGN_OR_RETURN(m->o_, builder.MakeLinear("self_attn.o_proj"));
  if (spec.rope) m->rope_ = RopeTable(*spec.rope);
  if (spec.indexer) {
    CADRE_ASSIGN_OR_RETURN(
        m->indexer_, Indexer::Create(*spec.indexer, builder, shared_indexer));
  }
  return m;
}

absl::Status MlaMixer::ForwardQueries(const LayerContext& ctx,
                                      const Tensor& x) {
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  q_heads_ = ctx.Saved({T, n * qk_dim()});
  if (spec_.q_lora_rank == 0) {
    CADRE_RETURN_IF_ERROR(q_.Forward(ctx, x, q_heads_));
  } else {
    q_raw_ = ctx.Saved({T, spec_.q_lora_rank});
    q_latent_ = ctx.Saved({T, spec_.q_lora_rank});
    CADRE_RETURN_IF_ERROR(q_a_.Forward(ctx, x, q_raw_));
    CADRE_RETURN_IF_ERROR(q_norm_.Forward(ctx, q_raw_, q_latent_));
    CADRE_RETURN_IF_ERROR(q_b_.Forward(ctx, q_latent_, q_heads_));
  }
  if (!spec_.rope) return absl::OkStatus();
  return rope_.Forward(ctx, q_heads_.Reshape({T, n, qk_dim()}),
                       spec_.qk_nope_dim);
}

absl::Status MlaMixer::ForwardKeysValues(const LayerContext& ctx,
                                         const Tensor& x) {
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  const int64_t latent = spec_.kv_lora_rank, rope_dim = spec_.qk_rope_dim;
  const int64_t nope = spec_.qk_nope_dim, v_dim = spec_.v_dim;
  kv_raw_ = ctx.Saved({T, latent});
  kv_latent_ = ctx.Saved({T, latent});
  k_heads_ = ctx.Saved({T, n, qk_dim()});
  v_heads_ = ctx.Saved({T, n, v_dim});
  ArenaScope scope(ctx.scratch);
  const Tensor both = ctx.Scratch({T, latent + rope_dim});
  CADRE_RETURN_IF_ERROR(kv_a_.Forward(ctx, x, both));
  CADRE_RETURN_IF_ERROR(CopyColumns(
      ctx.exec, {.src = both, .dst = kv_raw_, .rows = T, .width = latent}));
  CADRE_RETURN_IF_ERROR(kv_norm_.Forward(ctx, kv_raw_, kv_latent_));
  if (rope_dim > 0) {
    // One rotated key part, the same for all heads.
    const Tensor shared = ctx.Scratch({T, 1, rope_dim});
    CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = both,
                                                 .dst = shared,
                                                 .rows = T,
                                                 .src_column = latent,
                                                 .width = rope_dim}));
    if (spec_.rope) CADRE_RETURN_IF_ERROR(rope_.Forward(ctx, shared, 0));
    for (int64_t h = 0; h < n; ++h) {
      CADRE_RETURN_IF_ERROR(
          CopyColumns(ctx.exec, {.src = shared,
                                 .dst = k_heads_,
                                 .rows = T,
                                 .dst_column = h * qk_dim() + nope,
                                 .width = rope_dim}));
    }
  }
  const Tensor kv = ctx.Scratch({T, n * (nope + v_dim)});
  CADRE_RETURN_IF_ERROR(kv_b_.Forward(ctx, kv_latent_, kv));
  CADRE_RETURN_IF_ERROR(CopyColumns(
      ctx.exec, {.src = kv, .dst = k_heads_, .rows = T * n, .width = nope}));
  return CopyColumns(ctx.exec, {.src = kv,
                                .dst = v_heads_,
                                .rows = T * n,
                                .src_column = nope,
                                .width = v_dim});
}

absl::Status MlaMixer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  x_ = x;
  CADRE_RETURN_IF_ERROR(ForwardQueries(ctx, x));
  CADRE_RETURN_IF_ERROR(ForwardKeysValues(ctx, x));
  KeySelection keys;
  if (indexer_ != nullptr) {
    CADRE_RETURN_IF_ERROR(indexer_->Choose(ctx, x, q_latent_));
    keys = indexer_->selection();
  }
  o_heads_ = ctx.Saved({T, n, spec_.v_dim});
  lse_ = ctx.SavedParam({T, n});
  CADRE_RETURN_IF_ERROR(
      AttentionForward(ctx.exec, {.q = q_heads_.Reshape({T, n, qk_dim()}),
                                  .k = k_heads_,
                                  .v = v_heads_,
                                  .cu_seqlens = ctx.cu_seqlens,
                                  .scale = spec_.softmax_scale,
                                  .selected = keys.selected,
                                  .num_valid = keys.num_valid,
                                  .o = o_heads_,
                                  .lse = lse_}));
  const Tensor flat = o_heads_.Reshape({T, n * spec_.v_dim});
  if (!spec_.output_gate) return o_.Forward(ctx, flat, y);
  gate_ = ctx.Saved({T, n * spec_.v_dim});
  gated_ = ctx.Saved({T, n * spec_.v_dim});
  CADRE_RETURN_IF_ERROR(g_.Forward(ctx, x, gate_));
  CADRE_RETURN_IF_ERROR(SigmoidGateForward(ctx.exec, flat, gate_, gated_));
  return o_.Forward(ctx, gated_, y);
}

absl::Status MlaMixer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kAttention);
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  ArenaScope scope(ctx.scratch);
  const Tensor flat = o_heads_.Reshape({T, n * spec_.v_dim});
  const Tensor d_heads = ctx.Scratch({T, n * spec_.v_dim});
  CADRE_RETURN_IF_ERROR(
      o_.Backward(ctx, spec_.output_gate ? gated_ : flat, dy, d_heads));
  if (spec_.output_gate) {
    const Tensor d_gate = ctx.Scratch({T, n * spec_.v_dim});
    CADRE_RETURN_IF_ERROR(SigmoidGateBackward(ctx.exec, {.x = flat,
                                                         .gate = gate_,
                                                         .dy = d_heads,
                                                         .dx = d_heads,
                                                         .dgate = d_gate}));
    CADRE_RETURN_IF_ERROR(g_.Backward(ctx, x_, d_gate, dx));
  }
  const Tensor dq = ctx.Scratch({T, n, qk_dim()});
  const Tensor dk = ctx.Scratch({T, n, qk_dim()});
  const Tensor dv = ctx.Scratch({T, n, spec_.v_dim});
  KeySelection keys;
  if (indexer_ != nullptr) keys = indexer_->selection();
  CADRE_RETURN_IF_ERROR(
      AttentionBackward(ctx.exec, {.q = q_heads_.Reshape({T, n, qk_dim()}),
                                   .k = k_heads_,
                                   .v = v_heads_,
                                   .cu_seqlens = ctx.cu_seqlens,
                                   .scale = spec_.softmax_scale,
                                   .selected = keys.selected,
                                   .num_valid = keys.num_valid,
                                   .o = o_heads_,
                                   .lse = lse_,
                                   .d_o = d_heads.Reshape({T, n, spec_.v_dim}),
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv}));
  CADRE_RETURN_IF_ERROR(BackwardQueries(ctx, dq, dx));
  return BackwardKeysValues(ctx, dk, dv, dx);
}

// Overwrites dx, or adds to it where the output gate has already written it.
absl::Status MlaMixer::BackwardQueries(const LayerContext& ctx,
                                       const Tensor& dq, const Tensor& dx) {
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  if (spec_.rope) {
    CADRE_RETURN_IF_ERROR(rope_.Backward(ctx, dq, spec_.qk_nope_dim));
  }
  const Tensor flat = dq.Reshape({T, n * qk_dim()});
  if (spec_.q_lora_rank == 0) {
    return q_.Backward(ctx, x_, flat, dx, spec_.output_gate);
  }
  const Tensor d_latent = ctx.Scratch({T, spec_.q_lora_rank});
  CADRE_RETURN_IF_ERROR(q_b_.Backward(ctx, q_latent_, flat, d_latent));
  CADRE_RETURN_IF_ERROR(q_norm_.Backward(ctx, q_raw_, d_latent, d_latent));
  return q_a_.Backward(ctx, x_, d_latent, dx, spec_.output_gate);
}

// Adds to dx.
absl::Status MlaMixer::BackwardKeysValues(const LayerContext& ctx,
                                          const Tensor& dk, const Tensor& dv,
                                          const Tensor& dx) {
  const int64_t T = ctx.num_tokens, n = spec_.num_heads;
  const int64_t latent = spec_.kv_lora_rank, rope_dim = spec_.qk_rope_dim;
  const int64_t nope = spec_.qk_nope_dim, v_dim = spec_.v_dim;
  const Tensor d_kv = ctx.Scratch({T, n * (nope + v_dim)});
  CADRE_RETURN_IF_ERROR(CopyColumns(
      ctx.exec, {.src = dk, .dst = d_kv, .rows = T * n, .width = nope}));
  CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = dv,
                                               .dst = d_kv,
                                               .rows = T * n,
                                               .dst_column = nope,
                                               .width = v_dim}));
  const Tensor d_latent = ctx.Scratch({T, latent});
  CADRE_RETURN_IF_ERROR(kv_b_.Backward(ctx, kv_latent_, d_kv, d_latent));
  CADRE_RETURN_IF_ERROR(kv_norm_.Backward(ctx, kv_raw_, d_latent, d_latent));
  const Tensor d_both = ctx.Scratch({T, latent + rope_dim});
  CADRE_RETURN_IF_ERROR(CopyColumns(
      ctx.exec, {.src = d_latent, .dst = d_both, .rows = T, .width = latent}));
  if (rope_dim > 0) {
    // The shared key part collects from all heads, in head order.
    const Tensor shared = ctx.Scratch({T, 1, rope_dim});
    for (int64_t h = 0; h < n; ++h) {
      CADRE_RETURN_IF_ERROR(
          CopyColumns(ctx.exec, {.src = dk,
                                 .dst = shared,
                                 .rows = T,
                                 .src_column = h * qk_dim() + nope,
                                 .width = rope_dim,
                                 .accumulate = h > 0}));
    }
    if (spec_.rope) CADRE_RETURN_IF_ERROR(rope_.Backward(ctx, shared, 0));
    CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = shared,
                                                 .dst = d_both,
                                                 .rows = T,
                                                 .dst_column = latent,
                                                 .width = rope_dim}));
  }
  return kv_a_.Backward(ctx, x_, d_both, dx, /*accumulate=*/true);
}

}  // namespace cadre
