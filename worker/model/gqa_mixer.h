#ifndef CADRE_WORKER_MODEL_GQA_MIXER_H_
#define CADRE_WORKER_MODEL_GQA_MIXER_H_

// Grouped-query attention with per-head query and key norms, partial rope and,
// in qwen3_next, an output gate stored beside the queries (models.md 2.6).

#include <memory>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"
#include "worker/model/norm.h"
#include "worker/model/rope_table.h"

namespace cadre {

class GqaMixer final : public Layer {
 public:
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      const GqaSpec& spec, double norm_eps, bool norm_unit_offset,
      const LayerBuilder& builder);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

 private:
  explicit GqaMixer(const GqaSpec& spec) : spec_(spec) {}
  // norm and rope of the heads in `raw` -> `heads`, both [T, heads, D].
  absl::Status Prepare(const LayerContext& ctx, Norm* norm, const Tensor& raw,
                       const Tensor& heads) const;
  absl::Status PrepareBackward(const LayerContext& ctx, Norm* norm,
                               const Tensor& raw, const Tensor& d) const;

  GqaSpec spec_;
  Linear q_, k_, v_, o_;
  Norm q_norm_, k_norm_;
  RopeTable rope_;
  Tensor x_, q_raw_, k_raw_, q_heads_, k_heads_, v_heads_, o_heads_, lse_,
      gate_, gated_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_GQA_MIXER_H_
