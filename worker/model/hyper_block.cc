#include "base/status_macros.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "worker/model/block.h"

namespace cadre {
namespace {

// One read - sublayer - write around the streams.
struct Site {
  Parameter *fn = nullptr, *base = nullptr, *scale = nullptr;
  // Of the last forward pass.
  Tensor streams, x, pre, post, comb, logits, rstd, o;
};

class HyperBlock final : public Block {
 public:
  HyperBlock(BlockParts parts, const HyperConnections& spec, double norm_eps)
      : parts_(std::move(parts)), spec_(spec), norm_eps_(norm_eps) {}

  absl::Status Bind(const LayerBuilder& builder) {
    for (auto [site, name] : {std::pair{&mixer_site_, "attn_hc."},
                              std::pair{&ffn_site_, "ffn_hc."}}) {
      const std::string at = name;
      CADRE_ASSIGN_OR_RETURN(site->fn, builder.Param(at + "fn"));
      CADRE_ASSIGN_OR_RETURN(site->base, builder.Param(at + "base"));
      CADRE_ASSIGN_OR_RETURN(site->scale, builder.Param(at + "scale"));
    }
    return absl::OkStatus();
  }

  absl::Status Forward(const LayerContext& ctx, const Stream& in,
                       Stream* out) override {
    const Tensor middle =
        ctx.Saved({in.state.dim(0), in.state.dim(1), in.state.dim(2)});
    CADRE_RETURN_IF_ERROR(Run(ctx, &mixer_site_, parts_.mixer.get(),
                              &parts_.mixer_norm, in.state, middle));
    return Run(ctx, &ffn_site_, parts_.ffn.get(), &parts_.ffn_norm, middle,
               out->state);
  }

  absl::Status Backward(const LayerContext& ctx, Stream* grad) override {
    CADRE_RETURN_IF_ERROR(RunBackward(ctx, &ffn_site_, parts_.ffn.get(),
                                      &parts_.ffn_norm, grad->state));
    return RunBackward(ctx, &mixer_site_, parts_.mixer.get(),
                       &parts_.mixer_norm, grad->state);
  }

 private:
  HyperConnectionParameters Parameters(const Site& site) const {
    return {.fn = site.fn->value,
            .base = site.base->value,
            .scale = site.scale->value,
            .norm_eps = norm_eps_,
            .eps = spec_.eps,
            .sinkhorn_iters = spec_.sinkhorn_iters};
  }

  absl::Status Run(const LayerContext& ctx, Site* site, Layer* layer,
                   Norm* norm, const Tensor& streams, const Tensor& out) const {
    const int64_t T = streams.dim(0), m = streams.dim(1), D = streams.dim(2);
    site->streams = streams;
    site->x = ctx.Saved({T, D});
    site->pre = ctx.SavedParam({T, m});
    site->post = ctx.SavedParam({T, m});
    site->comb = ctx.SavedParam({T, m, m});
    site->logits = ctx.SavedParam({T, (2 + m) * m});
    site->rstd = ctx.SavedParam({T});
    site->o = ctx.Saved({T, D});
    const Tensor normed = ctx.Saved({T, D});
    CADRE_RETURN_IF_ERROR(
        HyperConnectionRead(ctx.exec, {.streams = streams,
                                       .parameters = Parameters(*site),
                                       .x = site->x,
                                       .pre = site->pre,
                                       .post = site->post,
                                       .comb = site->comb,
                                       .logits = site->logits,
                                       .rstd = site->rstd}));
    CADRE_RETURN_IF_ERROR(norm->Forward(ctx, site->x, normed));
    CADRE_RETURN_IF_ERROR(layer->Forward(ctx, normed, site->o));
    return HyperConnectionWrite(ctx.exec, {.streams = streams,
                                           .o = site->o,
                                           .post = site->post,
                                           .comb = site->comb,
                                           .streams_out = out});
  }

  // d holds the gradient of the streams behind the site, then before it.
  absl::Status RunBackward(const LayerContext& ctx, Site* site, Layer* layer,
                           Norm* norm, const Tensor& d) const {
    const int64_t T = d.dim(0), m = d.dim(1), D = d.dim(2);
    ArenaScope scope(ctx.scratch);
    const Tensor d_o = ctx.Scratch({T, D}), dx = ctx.Scratch({T, D});
    const Tensor d_post = ctx.ScratchParam({T, m}),
                 d_comb = ctx.ScratchParam({T, m, m});
    CADRE_RETURN_IF_ERROR(
        HyperConnectionWriteBackward(ctx.exec, {.streams = site->streams,
                                                .o = site->o,
                                                .post = site->post,
                                                .comb = site->comb,
                                                .dstreams_out = d,
                                                .d_o = d_o,
                                                .dpost = d_post,
                                                .dcomb = d_comb,
                                                .dstreams = d}));
    CADRE_RETURN_IF_ERROR(layer->Backward(ctx, d_o, dx));
    CADRE_RETURN_IF_ERROR(norm->Backward(ctx, site->x, dx, dx));
    return HyperConnectionReadBackward(
        ctx.exec, {.streams = site->streams,
                   .parameters = Parameters(*site),
                   .pre = site->pre,
                   .post = site->post,
                   .logits = site->logits,
                   .rstd = site->rstd,
                   .dx = dx,
                   .dpost = d_post,
                   .dcomb = d_comb,
                   .dstreams = d,
                   .workspace = ctx.ScratchParam({T, (2 + m) * m}),
                   .dfn = site->fn->grad,
                   .dbase = site->base->grad,
                   .dscale = site->scale->grad});
  }

  BlockParts parts_;
  HyperConnections spec_;
  double norm_eps_;
  Site mixer_site_, ffn_site_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Block>> MakeHyperBlock(
    BlockParts parts, const HyperConnections& spec, double norm_eps,
    const LayerBuilder& builder) {
  auto block = std::make_unique<HyperBlock>(std::move(parts), spec, norm_eps);
  CADRE_RETURN_IF_ERROR(block->Bind(builder));
  return block;
}

}  // namespace cadre
