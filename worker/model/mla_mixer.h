#ifndef CADRE_WORKER_MODEL_MLA_MIXER_H_
#define CADRE_WORKER_MODEL_MLA_MIXER_H_

// Multi-head latent attention, in its expanded (multi-head) form (models.md
// 2.5): dense, or over the keys an indexer chose; with or without query
// latent, rope and output gate.

#include <memory>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/indexer.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"
#include "worker/model/norm.h"
#include "worker/model/rope_table.h"

namespace cadre {

class MlaMixer final : public Layer {
 public:
  // `shared_indexer`: of the nearest full sparse layer before; may be null.
  static absl::StatusOr<std::unique_ptr<MlaMixer>> Create(
      const MlaSpec& spec, const LayerBuilder& builder,
      const Indexer* shared_indexer);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

  // Null for a dense layer.
  const Indexer* indexer() const { return indexer_.get(); }

 private:
  explicit MlaMixer(const MlaSpec& spec) : spec_(spec) {}
  int64_t qk_dim() const { return spec_.qk_nope_dim + spec_.qk_rope_dim; }
  // Latents to queries, keys and values of all heads.
  absl::Status ForwardQueries(const LayerContext& ctx, const Tensor& x);
  absl::Status ForwardKeysValues(const LayerContext& ctx, const Tensor& x);
  absl::Status BackwardQueries(const LayerContext& ctx, const Tensor& dq,
                               const Tensor& dx);
  absl::Status BackwardKeysValues(const LayerContext& ctx, const Tensor& dk,
                                  const Tensor& dv, const Tensor& dx);

  MlaSpec spec_;
  Linear q_, q_a_, q_b_, kv_a_, kv_b_, g_, o_;
  Norm q_norm_, kv_norm_;
  RopeTable rope_;
  std::unique_ptr<Indexer> indexer_;

  Tensor x_, q_raw_, q_latent_, q_heads_, kv_raw_, kv_latent_, k_heads_,
      v_heads_, o_heads_, lse_, gate_, gated_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_MLA_MIXER_H_
