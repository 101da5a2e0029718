#ifndef CADRE_WORKER_MODEL_GDN_MIXER_H_
#define CADRE_WORKER_MODEL_GDN_MIXER_H_

// Gated DeltaNet as a token mixer (models.md 3.1), with the input projections
// stored grouped by key head (qwen3_next) or split (qwen3_5_moe).

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/gdn/gdn.h"
#include "model/model_spec.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"

namespace cadre {

class GdnMixer final : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      const GdnSpec& spec, double norm_eps, const LayerBuilder& builder);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

 private:
  // Of the last forward pass.
  GdnInputs RecurrenceInputs(const LayerContext& ctx) const;
  GdnMixer(const GdnSpec& spec, double norm_eps)
      : spec_(spec), norm_eps_(norm_eps) {}
  int64_t key_dim() const { return spec_.num_key_heads * spec_.key_head_dim; }
  int64_t value_dim() const {
    return spec_.num_value_heads * spec_.value_head_dim;
  }
  // Moves columns between the stored grouping and qkv_, gate_, beta_, a_ (or
  // their gradients), in either direction.
  struct Parts {
    Tensor qkv, gate, beta, a;
  };
  absl::Status Regroup(const LayerContext& ctx, const Tensor& qkvz,
                       const Tensor& ba, const Parts& parts, bool split) const;
  absl::Status Project(const LayerContext& ctx, const Tensor& x);
  absl::Status ProjectBackward(const LayerContext& ctx, const Parts& d,
                               const Tensor& dx);

  GdnSpec spec_;
  double norm_eps_;
  Linear qkvz_, ba_;        // grouped
  Linear qkv_, z_, b_, a_;  // split
  Linear out_;
  Parameter *conv_ = nullptr, *a_log_ = nullptr, *dt_bias_ = nullptr,
            *norm_ = nullptr;
  Tensor x_, pre_, post_, gate_, beta_, decay_, q_raw_, k_raw_, q_unit_,
      k_unit_, v_, o_heads_, normed_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_GDN_MIXER_H_
