#ifndef CADRE_WORKER_MODEL_INDEXER_H_
#define CADRE_WORKER_MODEL_INDEXER_H_

// Which keys a sparse (DSA) layer attends to (models.md 4). Never trained and
// without gradient: forward only. A shared layer passes on what the nearest
// full layer before it chose.

#include <memory>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/context.h"
#include "worker/model/layer_builder.h"
#include "worker/model/rope_table.h"

namespace cadre {

struct KeySelection {
  Tensor selected;   // i32 [T, W]; absent: all keys
  Tensor num_valid;  // i32 [T]
};

class Indexer {
 public:
  // `source`: the indexer whose choice a shared layer reuses; must outlive
  // this.
  static absl::StatusOr<std::unique_ptr<Indexer>> Create(
      const IndexerSpec& spec, const LayerBuilder& builder,
      const Indexer* source);

  // x: the normed layer input [T, D]; q_latent: the normed query latent [T, Q].
  // The choice lives in ctx.kept; in a replay the kept one stays.
  absl::Status Choose(const LayerContext& ctx, const Tensor& x,
                      const Tensor& q_latent);
  const KeySelection& selection() const {
    return source_ != nullptr ? source_->selection() : selection_;
  }

 private:
  Indexer(const IndexerSpec& spec, const Indexer* source)
      : spec_(spec), source_(source) {}

  absl::Status ExchangeChoice(const LayerContext& ctx) const;

  IndexerSpec spec_;
  const Indexer* source_;
  RopeTable rope_;
  Linear wq_b_, wk_, weights_proj_;
  Parameter *k_norm_weight_ = nullptr, *k_norm_bias_ = nullptr;
  Parameter* pool_ape_ = nullptr;
  Parameter* pool_gate_ = nullptr;
  KeySelection selection_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_INDEXER_H_
