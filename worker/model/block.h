#ifndef CADRE_WORKER_MODEL_BLOCK_H_
#define CADRE_WORKER_MODEL_BLOCK_H_

// One block of the model: a token mixer and a feed-forward part on a residual
// stream. How the stream is read and written differs by model (plain, hyper-
// connections, attention residuals): one class each, all on the same layers.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"
#include "worker/model/norm.h"

namespace cadre {

// What flows from block to block, or its gradient.
struct Stream {
  Tensor state;              // [T, D]; [T, m, D] with hyper-connections
  std::vector<Tensor> bank;  // [T, D] each; attention residuals only
};

// The layers a block is made of.
struct BlockParts {
  std::unique_ptr<Layer> mixer, ffn;
  Norm mixer_norm, ffn_norm;
};

class Block {
 public:
  virtual ~Block() = default;
  // `out->state` is allocated by the caller with in.state's shape and written;
  // it does not overlap in.state, which must stay until Backward.
  virtual absl::Status Forward(const LayerContext& ctx, const Stream& in,
                               Stream* out) = 0;
  // d(out) in, d(in) out, in place.
  virtual absl::Status Backward(const LayerContext& ctx, Stream* grad) = 0;
};

// x += mixer(norm(x)); x += ffn(norm(x)).
std::unique_ptr<Block> MakePlainBlock(BlockParts parts);

// mHC (models.md 2.9): m streams, read and written by learnt mappings.
absl::StatusOr<std::unique_ptr<Block>> MakeHyperBlock(
    BlockParts parts, const HyperConnections& spec, double norm_eps,
    const LayerBuilder& builder);

// AttnRes (models.md 2.10). starts_afresh: this block moves the sum into the
// bank and begins a new one.
absl::StatusOr<std::unique_ptr<Block>> MakeAttentionResidualBlock(
    BlockParts parts, bool starts_afresh, double eps,
    const LayerBuilder& builder);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_BLOCK_H_
