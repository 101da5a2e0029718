#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/model/block.h"

namespace cadre {
namespace {

class PlainBlock final : public Block {
 public:
  explicit PlainBlock(BlockParts parts) : parts_(std::move(parts)) {}

  absl::Status Forward(const LayerContext& ctx, const Stream& in,
                       Stream* out) override {
    const int64_t T = in.state.dim(0), D = in.state.dim(1);
    in_ = in.state;
    middle_ = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(
        Add(ctx, parts_.mixer.get(), &parts_.mixer_norm, in_, middle_));
    if (ctx.replay) return Replay(ctx, out->state);
    return Add(ctx, parts_.ffn.get(), &parts_.ffn_norm, middle_, out->state);
  }

  absl::Status Backward(const LayerContext& ctx, Stream* grad) override {
    CADRE_RETURN_IF_ERROR(AddBackward(ctx, parts_.ffn.get(), &parts_.ffn_norm,
                                      middle_, grad->state));
    return AddBackward(ctx, parts_.mixer.get(), &parts_.mixer_norm, in_,
                       grad->state);
  }

 private:
  // y = x + layer(norm(x))
  static absl::Status Add(const LayerContext& ctx, Layer* layer, Norm* norm,
                          const Tensor& x, const Tensor& y) {
    const int64_t T = x.dim(0), D = x.dim(1);
    const Tensor normed = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(norm->Forward(ctx, x, normed));
    CADRE_RETURN_IF_ERROR(layer->Forward(ctx, normed, y));
    return AddInPlace(ctx.exec, x, y);
  }
  // The next block's input was kept: the sum itself is not wanted again.
  absl::Status Replay(const LayerContext& ctx, const Tensor& workspace) {
    const Tensor normed = ctx.Saved({middle_.dim(0), middle_.dim(1)});
    CADRE_RETURN_IF_ERROR(parts_.ffn_norm.Forward(ctx, middle_, normed));
    return parts_.ffn->Replay(ctx, normed, workspace);
  }
  // d holds dy, then dx.
  static absl::Status AddBackward(const LayerContext& ctx, Layer* layer,
                                  Norm* norm, const Tensor& x,
                                  const Tensor& d) {
    ArenaScope scope(ctx.scratch);
    const Tensor d_normed = ctx.Scratch({x.dim(0), x.dim(1)});
    CADRE_RETURN_IF_ERROR(layer->Backward(ctx, d, d_normed));
    return norm->Backward(ctx, x, d_normed, d, /*accumulate=*/true);
  }

  BlockParts parts_;
  Tensor in_, middle_;
};

}  // namespace

std::unique_ptr<Block> MakePlainBlock(BlockParts parts) {
  return std::make_unique<PlainBlock>(std::move(parts));
}

}  // namespace cadre
