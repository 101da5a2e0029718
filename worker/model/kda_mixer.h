#ifndef CADRE_WORKER_MODEL_KDA_MIXER_H_
#define CADRE_WORKER_MODEL_KDA_MIXER_H_

// Kimi delta attention as a token mixer (models.md 3.1): projections, short
// convolutions, the recurrence, gated norm, output projection.

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/kda/kda.h"
#include "model/model_spec.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"

namespace cadre {

class KdaMixer final : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      const KdaSpec& spec, double norm_eps, const LayerBuilder& builder);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

 private:
  // q, k and v behind their convolutions, the first two of unit length.
  struct Front {
    Tensor q, k, v;
  };

  KdaMixer(const KdaSpec& spec, double norm_eps)
      : spec_(spec), norm_eps_(norm_eps) {}
  // These from what the last forward pass kept.
  absl::Status RunFront(const LayerContext& ctx, const Front& front) const;
  KdaInputs RecurrenceInputs(const LayerContext& ctx, const Front& front) const;
  absl::Status RunNorm(const LayerContext& ctx, const Tensor& gate,
                       const Tensor& normed) const;
  // Rows of the fused convolution that belong to part 0 (q), 1 (k) or 2 (v).
  Tensor ConvPart(const Tensor& fused, int part) const;

  KdaSpec spec_;
  double norm_eps_;
  Linear q_, k_, v_, f_a_, f_b_, b_, o_;
  Linear g_a_, g_b_;  // full-rank output gate: g_b_ alone
  Parameter *conv_ = nullptr, *a_log_ = nullptr, *dt_bias_ = nullptr,
            *o_norm_ = nullptr;

  // Of the last forward pass. What one cheap launch makes of these is made
  // again in the backward: behind the convolutions, behind the gated norm, and
  // the output gate unless a product of full rank makes it. A replay, behind
  // which the backward comes at once, keeps these too.
  Tensor x_, pre_[3], f_mid_, z_, beta_, o_heads_, g_mid_, gate_;
  struct {
    Front front;
    Tensor normed;
  } made_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_KDA_MIXER_H_
