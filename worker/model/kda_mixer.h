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
  // Of the last forward pass.
  KdaInputs RecurrenceInputs(const LayerContext& ctx) const;
  KdaMixer(const KdaSpec& spec, double norm_eps)
      : spec_(spec), norm_eps_(norm_eps) {}
  // Rows of the fused convolution that belong to part 0 (q), 1 (k) or 2 (v).
  Tensor ConvPart(const Tensor& fused, int part) const;

  KdaSpec spec_;
  double norm_eps_;
  Linear q_, k_, v_, f_a_, f_b_, b_, o_;
  Linear g_a_, g_b_;  // full-rank output gate: g_b_ alone
  Parameter *conv_ = nullptr, *a_log_ = nullptr, *dt_bias_ = nullptr,
            *o_norm_ = nullptr;

  // Of the last forward pass: before and behind the convolutions, behind the
  // l2 norms, and so on in the order of the computation.
  Tensor x_, pre_[3], q_unit_, k_unit_, values_, f_mid_, z_, beta_, o_heads_,
      g_mid_, gate_, normed_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_KDA_MIXER_H_
