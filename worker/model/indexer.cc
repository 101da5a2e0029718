#include "worker/model/indexer.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/cast/cast.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layernorm/layernorm.h"
#include "kernels/sparse_index/sparse_index.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Indexer>> Indexer::Create(
    const IndexerSpec& spec, const LayerBuilder& builder,
    const Indexer* source) {
  std::unique_ptr<Indexer> m(new Indexer(spec, source));
  if (spec.kind == IndexerSpec::Kind::kShared) {
    if (source == nullptr) {
      return absl::InternalError("a shared index layer has no full one before");
    }
    return m;
  }
  m->source_ = nullptr;
  const std::string at = "self_attn.indexer.";
  CADRE_ASSIGN_OR_RETURN(m->wq_b_, builder.MakeLinear(at + "wq_b"));
  CADRE_ASSIGN_OR_RETURN(m->wk_, builder.MakeLinear(at + "wk"));
  CADRE_ASSIGN_OR_RETURN(m->weights_proj_,
                         builder.MakeLinear(at + "weights_proj"));
  CADRE_ASSIGN_OR_RETURN(m->k_norm_weight_,
                         builder.Param(at + "k_norm.weight"));
  CADRE_ASSIGN_OR_RETURN(m->k_norm_bias_, builder.Param(at + "k_norm.bias"));
  if (spec.kpool > 0) {
    CADRE_ASSIGN_OR_RETURN(m->pool_ape_,
                           builder.Param(at + "index_kpool_compress_ape"));
    CADRE_ASSIGN_OR_RETURN(m->pool_gate_,
                           builder.Param(at + "index_kpool_compress_gate"));
  }
  if (spec.rope) m->rope_ = RopeTable(*spec.rope);
  return m;
}

absl::Status Indexer::Choose(const LayerContext& ctx, const Tensor& x,
                             const Tensor& q_latent) {
  if (source_ != nullptr || ctx.replay) return absl::OkStatus();
  const int64_t T = ctx.num_tokens;
  const int64_t heads = spec_.num_heads, width = spec_.head_dim;
  const int64_t row = IndexWidth(spec_.topk, spec_.kpool);
  selection_.selected = ctx.kept->Allocate(DType::kI32, {T, row});
  selection_.num_valid = ctx.kept->Allocate(DType::kI32, {T});

  if (ctx.selections != nullptr && ctx.selections->given()) {
    return ExchangeChoice(ctx);
  }

  ArenaScope scope(ctx.scratch);
  const Tensor q = ctx.Scratch({T, heads * width});
  const Tensor k = ctx.Scratch({T, width});
  const Tensor omega = ctx.ScratchParam({T, heads});
  CADRE_RETURN_IF_ERROR(wq_b_.Forward(ctx, q_latent, q));
  CADRE_RETURN_IF_ERROR(wk_.Forward(ctx, x, k));
  CADRE_RETURN_IF_ERROR(LayerNormForward(ctx.exec, {.x = k,
                                                    .w = k_norm_weight_->value,
                                                    .b = k_norm_bias_->value,
                                                    .y = k,
                                                    .eps = 1e-6}));
  // omega = weights_proj(x) Hi^-1/2
  const double scale = 1 / std::sqrt(static_cast<double>(heads));
  Tensor x_wide = x;
  if (weights_proj_.weight().dtype() != x.dtype()) {
    // These weights stay f32 on a GPU.
    x_wide = ctx.ScratchParam({T, x.dim(1)});
    CADRE_RETURN_IF_ERROR(Cast(ctx.exec, x, x_wide));
  }
  CADRE_RETURN_IF_ERROR(Gemm(ctx.exec, {.a = x_wide,
                                        .b = weights_proj_.weight(),
                                        .c = omega,
                                        .trans_b = true,
                                        .alpha = scale}));
  if (spec_.rope) {
    CADRE_RETURN_IF_ERROR(rope_.Forward(ctx, q.Reshape({T, heads, width}), 0));
    CADRE_RETURN_IF_ERROR(rope_.Forward(ctx, k.Reshape({T, 1, width}), 0));
  }
  SparseIndexArgs args{.q = q.Reshape({T, heads, width}),
                       .k = k,
                       .head_weight = omega,
                       .cu_seqlens = ctx.cu_seqlens,
                       .topk = spec_.topk,
                       .kpool = spec_.kpool,
                       .selected = selection_.selected,
                       .num_valid = selection_.num_valid};
  if (spec_.kpool > 0) {
    args.pool_gate = ctx.Scratch({T, width});
    args.pool_ape = pool_ape_->value;
    CADRE_RETURN_IF_ERROR(Gemm(ctx.exec, {.a = x,
                                          .b = pool_gate_->value,
                                          .c = args.pool_gate,
                                          .trans_b = true}));
  }
  CADRE_RETURN_IF_ERROR(SparseIndex(ctx.exec, args));
  return ExchangeChoice(ctx);
}

absl::Status Indexer::ExchangeChoice(const LayerContext& ctx) const {
  if (ctx.selections == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(ctx.selections->Exchange(
      ctx.exec, Selections::Kind::kKeys, selection_.selected));
  return ctx.selections->Exchange(ctx.exec, Selections::Kind::kNumKeys,
                                  selection_.num_valid);
}

}  // namespace cadre
