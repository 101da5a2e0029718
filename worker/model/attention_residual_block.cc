#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/model/block.h"
#include "worker/model/residual_mix.h"

namespace cadre {
namespace {

class AttentionResidualBlock final : public Block {
 public:
  AttentionResidualBlock(BlockParts parts, bool starts_afresh)
      : parts_(std::move(parts)), starts_afresh_(starts_afresh) {}

  absl::Status Bind(double eps, const LayerBuilder& builder) {
    CADRE_ASSIGN_OR_RETURN(mixer_mix_,
                           ResidualMix::Create("self_attention", eps, builder));
    CADRE_ASSIGN_OR_RETURN(ffn_mix_, ResidualMix::Create("mlp", eps, builder));
    return absl::OkStatus();
  }

  absl::Status Forward(const LayerContext& ctx, const Stream& in,
                       Stream* out) override {
    const int64_t T = in.state.dim(0), D = in.state.dim(1);
    mixed_ = !in.bank.empty();
    x_ = in.state;
    if (mixed_) {
      x_ = ctx.Saved({T, D});
      CADRE_RETURN_IF_ERROR(mixer_mix_.Forward(ctx, in.bank, in.state, x_));
    }
    out->bank = in.bank;
    if (starts_afresh_) out->bank.push_back(in.state);
    middle_ = ctx.Saved({T, D});
    const Tensor normed_x = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(parts_.mixer_norm.Forward(ctx, x_, normed_x));
    CADRE_RETURN_IF_ERROR(parts_.mixer->Forward(ctx, normed_x, middle_));
    if (!starts_afresh_) {
      CADRE_RETURN_IF_ERROR(AddInPlace(ctx.exec, in.state, middle_));
    }
    x2_ = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(ffn_mix_.Forward(ctx, out->bank, middle_, x2_));
    const Tensor normed = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(parts_.ffn_norm.Forward(ctx, x2_, normed));
    // The next block's input was kept: the sum itself is not wanted again.
    if (ctx.replay) return parts_.ffn->Replay(ctx, normed, out->state);
    CADRE_RETURN_IF_ERROR(parts_.ffn->Forward(ctx, normed, out->state));
    return AddInPlace(ctx.exec, middle_, out->state);
  }

  absl::Status Backward(const LayerContext& ctx, Stream* grad) override {
    ArenaScope scope(ctx.scratch);
    const Tensor d = grad->state;  // of out->state, then of middle_
    const Tensor dx = ctx.Scratch({d.dim(0), d.dim(1)});
    CADRE_RETURN_IF_ERROR(
        RunBackward(ctx, parts_.ffn.get(), &parts_.ffn_norm, x2_, d, dx));
    CADRE_RETURN_IF_ERROR(ffn_mix_.Backward(ctx, dx, grad->bank, d));
    CADRE_RETURN_IF_ERROR(
        RunBackward(ctx, parts_.mixer.get(), &parts_.mixer_norm, x_, d, dx));
    if (starts_afresh_) {
      // The sum before this block lives on in the bank only.
      grad->state = grad->bank.back();
      grad->bank.pop_back();
    }
    if (mixed_) return mixer_mix_.Backward(ctx, dx, grad->bank, grad->state);
    return AddInPlace(ctx.exec, dx, grad->state);
  }

 private:
  static absl::Status RunBackward(const LayerContext& ctx, Layer* layer,
                                  Norm* norm, const Tensor& x, const Tensor& dy,
                                  const Tensor& dx) {
    CADRE_RETURN_IF_ERROR(layer->Backward(ctx, dy, dx));
    return norm->Backward(ctx, x, dx, dx);
  }

  BlockParts parts_;
  const bool starts_afresh_;
  ResidualMix mixer_mix_, ffn_mix_;
  bool mixed_ = false;
  Tensor x_, middle_, x2_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Block>> MakeAttentionResidualBlock(
    BlockParts parts, bool starts_afresh, double eps,
    const LayerBuilder& builder) {
  auto block =
      std::make_unique<AttentionResidualBlock>(std::move(parts), starts_afresh);
  CADRE_RETURN_IF_ERROR(block->Bind(eps, builder));
  return block;
}

}  // namespace cadre
