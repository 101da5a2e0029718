#include "worker/model/moe_layer.h"

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/router/router_z_loss.h"
#include "worker/device/transfer.h"
#include "worker/model/dense_mlp.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Layer>> MoeLayer::Create(
    const MoeSpec& spec, int index, double norm_eps,
    const LayerBuilder& builder) {
  std::unique_ptr<MoeLayer> m(new MoeLayer(spec));
  CADRE_ASSIGN_OR_RETURN(m->router_, builder.MakeLinear("mlp.gate"));
  if (spec.router.correction_bias) {
    CADRE_ASSIGN_OR_RETURN(m->correction_bias_,
                           builder.Param("mlp.gate.e_score_correction_bias"));
  }
  CADRE_ASSIGN_OR_RETURN(const Experts experts,
                         Experts::Create(spec.activation, builder));
  m->experts_ = RoutedExperts(experts);
  m->dispatch_ = ExpertDispatch(experts, index);
  if (spec.shared_width > 0) {
    // qwen has one shared expert, the others a list.
    const char* name = builder.Has("mlp.shared_expert.gate_proj.weight")
                           ? "mlp.shared_expert"
                           : "mlp.shared_experts";
    CADRE_ASSIGN_OR_RETURN(m->shared_,
                           DenseMlp::Create(spec.activation, name, builder));
  }
  if (spec.shared_gate) {
    CADRE_ASSIGN_OR_RETURN(m->shared_gate_,
                           builder.MakeLinear("mlp.shared_expert_gate"));
  }
  if (spec.latent_dim > 0) {
    CADRE_ASSIGN_OR_RETURN(m->latent_down_,
                           builder.MakeLinear("mlp.routed_expert_down_proj"));
    CADRE_ASSIGN_OR_RETURN(m->latent_up_,
                           builder.MakeLinear("mlp.routed_expert_up_proj"));
    if (spec.latent_norm) {
      CADRE_ASSIGN_OR_RETURN(Parameter * weight,
                             builder.Param("mlp.routed_expert_norm.weight"));
      m->latent_norm_ = Norm(weight, norm_eps, /*unit_offset=*/false);
    }
  }
  return m;
}

RouterOptions MoeLayer::Options() const {
  const RouterSpec& r = spec_.router;
  return {.score = r.score == RouterSpec::Score::kSigmoid
                       ? RouterOptions::Score::kSigmoid
                       : RouterOptions::Score::kSoftmax,
          .num_groups = r.num_groups,
          .topk_groups = r.topk_groups,
          .renormalize = r.renormalize,
          .renormalize_eps = r.renormalize_eps,
          .scaling = r.scaling};
}

absl::Status MoeLayer::Route(const LayerContext& ctx, const Tensor& x) {
  PhaseScope phase(ctx.phases, Phase::kRouter);
  const int64_t T = ctx.num_tokens, E = spec_.num_experts, k = spec_.top_k;
  logits_ = ctx.SavedParam({T, E});
  CADRE_RETURN_IF_ERROR(router_.Forward(ctx, x, logits_));
  if (!ctx.replay) {
    // A choice made again with other rounding could differ: it is kept.
    ids_ = ctx.kept->Allocate(DType::kI32, {T, k});
    weights_ = ctx.kept->Allocate(ctx.param_dtype, {T, k});
    const Tensor counts = ctx.kept->Allocate(DType::kI64, {E});
    RouterForwardArgs args{.logits = logits_,
                           .mask = ctx.mask,
                           .options = Options(),
                           .ids = ids_,
                           .weights = weights_,
                           .counts = counts};
    if (correction_bias_ != nullptr) {
      args.correction_bias = correction_bias_->value;
    }
    args.ids_given = ctx.selections != nullptr && ctx.selections->given();
    if (args.ids_given) CADRE_RETURN_IF_ERROR(ExchangeChoice(ctx));
    CADRE_RETURN_IF_ERROR(RouterForward(ctx.exec, args));
    if (!args.ids_given) CADRE_RETURN_IF_ERROR(ExchangeChoice(ctx));
    CADRE_RETURN_IF_ERROR(LimitExperts(ctx));
    if (ctx.routers != nullptr) {
      ctx.routers->expert_tokens.push_back(counts);
      if (ctx.routers->logits != nullptr) {
        CADRE_ASSIGN_OR_RETURN(std::vector<float> logits,
                               ReadFloats(ctx.exec, logits_));
        ctx.routers->logits->push_back(std::move(logits));
      }
      if (ctx.routers->z_sum.present()) {
        CADRE_RETURN_IF_ERROR(RouterZLoss(
            ctx.exec,
            {.logits = logits_, .mask = ctx.mask, .sum = ctx.routers->z_sum}));
      }
      if (ctx.routers->aux.counts.present()) {
        CADRE_RETURN_IF_ERROR(
            RouterAuxAccumulate(ctx.exec, {.logits = logits_,
                                           .mask = ctx.mask,
                                           .top_k = k,
                                           .statistics = ctx.routers->aux}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MoeLayer::ExchangeChoice(const LayerContext& ctx) {
  if (ctx.selections == nullptr) return absl::OkStatus();
  return ctx.selections->Exchange(ctx.exec, Selections::Kind::kExperts, ids_);
}

absl::Status MoeLayer::LimitExperts(const LayerContext& ctx) {
  routed_ids_ = ids_;
  weight_sum_ = Tensor();
  if (ctx.routers == nullptr || ctx.routers->capacity == 0) {
    return absl::OkStatus();
  }
  const int64_t T = ids_.dim(0), k = ids_.dim(1);
  routed_ids_ = ctx.kept->Allocate(DType::kI32, {T, k});
  weight_sum_ = ctx.kept->Allocate(ctx.param_dtype, {T});
  const Tensor counts = ctx.kept->Allocate(DType::kI64, {kNumOverflowCounts});
  ctx.routers->overflow_counts.push_back(counts);
  RouterOverflowArgs args{.logits = logits_,
                          .options = Options(),
                          .policy = ctx.routers->overflow,
                          .capacity = ctx.routers->capacity,
                          .ids = ids_,
                          .weights = weights_,
                          .routed_ids = routed_ids_,
                          .weight_sum = weight_sum_,
                          .counts = counts};
  if (correction_bias_ != nullptr) {
    args.correction_bias = correction_bias_->value;
  }
  const ArenaScope scope(ctx.scratch);
  if (ctx.exec.backend == Backend::kCuda) {
    args.workspace = ctx.scratch->Allocate(
        DType::kU8, {RouterOverflowWorkspaceBytes(T, k, spec_.num_experts)});
  }
  return RouterOverflow(ctx.exec, args);
}

absl::Status MoeLayer::ForwardRouted(const LayerContext& ctx, const Tensor& in,
                                     const Tensor& y,
                                     const ExpertDispatch::Filler& shared) {
  if (ctx.experts != nullptr) {
    return dispatch_.Forward(ctx, in, routed_ids_, weights_, y, shared);
  }
  CADRE_RETURN_IF_ERROR(experts_.Forward(ctx, in, routed_ids_, weights_, y));
  return shared();
}

absl::Status MoeLayer::BackwardRouted(const LayerContext& ctx, const Tensor& dy,
                                      const Tensor& d_weights,
                                      const Tensor& d_in, bool accumulate,
                                      const ExpertDispatch::Filler& shared) {
  if (ctx.experts != nullptr) {
    return dispatch_.Backward(ctx, dy, d_weights, d_in, accumulate, shared);
  }
  CADRE_RETURN_IF_ERROR(shared());
  return experts_.Backward(ctx, dy, d_weights, d_in, accumulate);
}

// Overwrites y.
absl::Status MoeLayer::ForwardShared(const LayerContext& ctx, const Tensor& x,
                                     const Tensor& y) {
  if (!spec_.shared_gate) return shared_->Forward(ctx, x, y);
  const int64_t T = x.dim(0), D = x.dim(1);
  shared_out_ = ctx.Saved({T, D});
  shared_gate_logit_ = ctx.Saved({T, 1});
  CADRE_RETURN_IF_ERROR(shared_->Forward(ctx, x, shared_out_));
  CADRE_RETURN_IF_ERROR(shared_gate_.Forward(ctx, x, shared_gate_logit_));
  return SigmoidGateForward(ctx.exec, shared_out_, shared_gate_logit_, y);
}

// Overwrites dx.
absl::Status MoeLayer::BackwardShared(const LayerContext& ctx, const Tensor& dy,
                                      const Tensor& dx) {
  if (!spec_.shared_gate) return shared_->Backward(ctx, dy, dx);
  ArenaScope scope(ctx.scratch);
  const Tensor d_out = ctx.Scratch({dy.dim(0), dy.dim(1)});
  const Tensor d_gate = ctx.Scratch({dy.dim(0), 1});
  CADRE_RETURN_IF_ERROR(
      SigmoidGateBackward(ctx.exec, {.x = shared_out_,
                                     .gate = shared_gate_logit_,
                                     .dy = dy,
                                     .dx = d_out,
                                     .dgate = d_gate}));
  CADRE_RETURN_IF_ERROR(shared_->Backward(ctx, d_out, dx));
  return shared_gate_.Backward(ctx, x_, d_gate, dx, /*accumulate=*/true);
}

absl::Status MoeLayer::Forward(const LayerContext& ctx, const Tensor& x,
                               const Tensor& y) {
  return Run(ctx, x, y);
}

absl::Status MoeLayer::Replay(const LayerContext& ctx, const Tensor& x,
                              const Tensor& y) {
  // Behind a latent space the backward pass reads what the experts gave.
  return Run(ctx, x, spec_.latent_dim == 0 ? Tensor() : y);
}

absl::Status MoeLayer::Run(const LayerContext& ctx, const Tensor& x,
                           const Tensor& y) {
  const int64_t T = x.dim(0);
  x_ = x;
  CADRE_RETURN_IF_ERROR(Route(ctx, x));
  const ArenaScope scope(ctx.scratch);
  Tensor shared_y;
  if (shared_ != nullptr) shared_y = ctx.Scratch({T, x.dim(1)});
  const auto shared = [&] {
    return shared_ == nullptr ? absl::OkStatus()
                              : ForwardShared(ctx, x, shared_y);
  };
  if (spec_.latent_dim == 0) {
    CADRE_RETURN_IF_ERROR(ForwardRouted(ctx, x, y, shared));
  } else {
    latent_ = ctx.Saved({T, spec_.latent_dim});
    combined_ = ctx.Saved({T, spec_.latent_dim});
    CADRE_RETURN_IF_ERROR(latent_down_.Forward(ctx, x, latent_));
    CADRE_RETURN_IF_ERROR(ForwardRouted(ctx, latent_, combined_, shared));
    combined_norm_ = combined_;
    if (spec_.latent_norm) {
      combined_norm_ = ctx.Saved({T, spec_.latent_dim});
      CADRE_RETURN_IF_ERROR(
          latent_norm_.Forward(ctx, combined_, combined_norm_));
    }
    CADRE_RETURN_IF_ERROR(latent_up_.Forward(ctx, combined_norm_, y));
  }
  return shared_ == nullptr || !y.present() ? absl::OkStatus()
                                            : AddInPlace(ctx.exec, shared_y, y);
}

// The router's part of the gradient, added to dx.
absl::Status MoeLayer::BackwardRouter(const LayerContext& ctx,
                                      const Tensor& d_weights,
                                      const Tensor& dx) {
  PhaseScope phase(ctx.phases, Phase::kRouter);
  ArenaScope scope(ctx.scratch);
  const Tensor d_logits = ctx.ScratchParam({ctx.num_tokens, spec_.num_experts});
  if (weight_sum_.present()) {
    CADRE_RETURN_IF_ERROR(
        RouterOverflowBackward(ctx.exec, {.logits = logits_,
                                          .options = Options(),
                                          .routed_ids = routed_ids_,
                                          .weight_sum = weight_sum_,
                                          .dweights = d_weights,
                                          .dlogits = d_logits}));
  }
  CADRE_RETURN_IF_ERROR(
      RouterBackward(ctx.exec, {.logits = logits_,
                                .options = Options(),
                                .ids = ids_,
                                .dweights = d_weights,
                                .dlogits = d_logits,
                                .accumulate = weight_sum_.present()}));
  if (ctx.routers != nullptr && ctx.routers->z_sum.present()) {
    CADRE_RETURN_IF_ERROR(
        RouterZLoss(ctx.exec, {.logits = logits_,
                               .mask = ctx.mask,
                               .coefficient = ctx.routers->z_coefficient,
                               .dlogits = d_logits}));
  }
  if (ctx.routers != nullptr && ctx.routers->aux.counts.present()) {
    CADRE_RETURN_IF_ERROR(RouterAuxBackward(
        ctx.exec, {.logits = logits_,
                   .mask = ctx.mask,
                   .statistics = ctx.routers->aux,
                   .coefficient = ctx.routers->aux_coefficient,
                   .dlogits = d_logits}));
  }
  return router_.Backward(ctx, x_, d_logits, dx, /*accumulate=*/true);
}

absl::Status MoeLayer::Backward(const LayerContext& ctx, const Tensor& dy,
                                const Tensor& dx) {
  const int64_t T = x_.dim(0);
  ArenaScope scope(ctx.scratch);
  const bool has_shared = shared_ != nullptr;
  const auto shared = [&] {
    return has_shared ? BackwardShared(ctx, dy, dx) : absl::OkStatus();
  };
  const Tensor d_weights = ctx.ScratchParam({T, spec_.top_k});
  if (spec_.latent_dim == 0) {
    CADRE_RETURN_IF_ERROR(
        BackwardRouted(ctx, dy, d_weights, dx, has_shared, shared));
  } else {
    const Tensor d_combined = ctx.Scratch({T, spec_.latent_dim});
    const Tensor d_latent = ctx.Scratch({T, spec_.latent_dim});
    CADRE_RETURN_IF_ERROR(
        latent_up_.Backward(ctx, combined_norm_, dy, d_combined));
    if (spec_.latent_norm) {
      CADRE_RETURN_IF_ERROR(
          latent_norm_.Backward(ctx, combined_, d_combined, d_combined));
    }
    CADRE_RETURN_IF_ERROR(
        BackwardRouted(ctx, d_combined, d_weights, d_latent, false, shared));
    CADRE_RETURN_IF_ERROR(
        latent_down_.Backward(ctx, x_, d_latent, dx, has_shared));
  }
  return BackwardRouter(ctx, d_weights, dx);
}

}  // namespace cadre
