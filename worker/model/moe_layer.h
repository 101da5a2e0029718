#ifndef CADRE_WORKER_MODEL_MOE_LAYER_H_
#define CADRE_WORKER_MODEL_MOE_LAYER_H_

// A mixture-of-experts feed-forward: route, run the chosen experts, here or on
// other ranks, combine; with shared expert, shared gate and latent projections
// where the model has them (models.md 2.7, 5.8).

#include <memory>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/expert_dispatch.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"
#include "worker/model/norm.h"
#include "worker/model/routed_experts.h"

namespace cadre {

class MoeLayer final : public Layer {
 public:
  // `index` counts the MoE layers of the model.
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      const MoeSpec& spec, int index, double norm_eps,
      const LayerBuilder& builder);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Replay(const LayerContext& ctx, const Tensor& x,
                      const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

 private:
  explicit MoeLayer(const MoeSpec& spec) : spec_(spec) {}
  // y absent: for the backward pass alone.
  absl::Status Run(const LayerContext& ctx, const Tensor& x, const Tensor& y);
  absl::Status Route(const LayerContext& ctx, const Tensor& x);
  absl::Status ExchangeChoice(const LayerContext& ctx);
  // Applies the capacity of experts to a fresh choice.
  absl::Status LimitExperts(const LayerContext& ctx);
  // Routed experts on `in` [T, Dr], the layer input or its latent; y is
  // overwritten. `shared` runs meanwhile.
  absl::Status ForwardRouted(const LayerContext& ctx, const Tensor& in,
                             const Tensor& y,
                             const ExpertDispatch::Filler& shared);
  // d_in is overwritten, or added to, after `shared` ran.
  absl::Status BackwardRouted(const LayerContext& ctx, const Tensor& dy,
                              const Tensor& d_weights, const Tensor& d_in,
                              bool accumulate,
                              const ExpertDispatch::Filler& shared);
  absl::Status BackwardRouter(const LayerContext& ctx, const Tensor& d_weights,
                              const Tensor& dx);
  absl::Status ForwardShared(const LayerContext& ctx, const Tensor& x,
                             const Tensor& y);
  absl::Status BackwardShared(const LayerContext& ctx, const Tensor& dy,
                              const Tensor& dx);
  RouterOptions Options() const;

  MoeSpec spec_;
  Linear router_;
  Parameter* correction_bias_ = nullptr;
  RoutedExperts experts_;    // where all experts are here
  ExpertDispatch dispatch_;  // where they are spread over ranks
  std::unique_ptr<Layer> shared_;
  Linear shared_gate_;
  Linear latent_down_, latent_up_;
  Norm latent_norm_;

  Tensor x_, logits_;
  Tensor ids_, weights_;  // kept, as those below
  // Where pairs go: ids_, or with a capacity what is left of it; weight_sum_ is
  // then present (kernels/router/router_overflow.h).
  Tensor routed_ids_, weight_sum_;
  Tensor latent_, combined_, combined_norm_;  // latent MoE
  Tensor shared_out_, shared_gate_logit_;     // gated shared expert
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_MOE_LAYER_H_
