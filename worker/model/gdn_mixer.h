#ifndef CADRE_WORKER_MODEL_GDN_MIXER_H_
#define CADRE_WORKER_MODEL_GDN_MIXER_H_

// Gated DeltaNet as a token mixer (models.md 3.1), with the input projections
// stored grouped by key head (qwen3_next) or split (qwen3_5_moe).

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/column_groups.h"
#include "kernels/gdn/gdn.h"
#include "kernels/short_conv/conv_front.h"
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
  // q, k and v behind their convolutions, the first two of unit length.
  struct Front {
    Tensor q, k, v;
  };
  enum Part { kQuery, kKey, kValue, kGate };

  GdnMixer(const GdnSpec& spec, double norm_eps)
      : spec_(spec), norm_eps_(norm_eps) {}
  bool grouped() const {
    return spec_.projections == GdnSpec::Projections::kGroupedQkvzBa;
  }
  int64_t key_dim() const { return spec_.num_key_heads * spec_.key_head_dim; }
  int64_t value_dim() const {
    return spec_.num_value_heads * spec_.value_head_dim;
  }
  int64_t Channels(Part part) const {
    return part == kQuery || part == kKey ? key_dim() : value_dim();
  }
  // Of pre_, and where its gradient is needed.
  int64_t pre_dim() const {
    return 2 * key_dim() + (grouped() ? 2 : 1) * value_dim();
  }
  // Where the channels of a part lie there. A split gate lies elsewhere.
  ColumnGroups At(Part part) const;
  // Rows of the convolution that belong to a part.
  Tensor ConvPart(const Tensor& conv, Part part) const;
  // Logits of beta and decay, in and out of what one projection makes of them.
  std::vector<ConvFrontMove> Logits(const Tensor& ba, const Tensor& beta,
                                    const Tensor& decay) const;

  // These from what the last forward pass kept, and the moves in front of them.
  absl::Status RunFront(const LayerContext& ctx, const Front& front,
                        std::vector<ConvFrontMove> moves) const;
  GdnInputs RecurrenceInputs(const LayerContext& ctx, const Front& front) const;
  absl::Status RunNorm(const LayerContext& ctx, const Tensor& normed) const;

  GdnSpec spec_;
  double norm_eps_;
  Linear qkvz_, ba_;        // grouped
  Linear qkv_, z_, b_, a_;  // split
  Linear out_;
  Parameter *conv_ = nullptr, *a_log_ = nullptr, *dt_bias_ = nullptr,
            *norm_ = nullptr;

  // Of the last forward pass. The gate is pre_ itself if grouped. What one
  // cheap launch makes of these is made again in the backward: behind the
  // convolutions, and behind the gated norm. A replay, behind which the
  // backward comes at once, keeps these too.
  Tensor x_, pre_, gate_, beta_, decay_, o_heads_;
  struct {
    Front front;
    Tensor normed;
  } made_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_GDN_MIXER_H_
