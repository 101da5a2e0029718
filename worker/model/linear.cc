#include "worker/model/linear.h"

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cast/cast.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"

namespace cadre {

absl::StatusOr<Tensor> LoraBranch::Dropped(const LayerContext& ctx,
                                           const Tensor& x) const {
  if (dropout == 0 || !ctx.training) return x;
  const Tensor out = ctx.Scratch({x.dim(0), x.dim(1)});
  CADRE_RETURN_IF_ERROR(
      Dropout(ctx.exec, {.x = x,
                         .y = out,
                         .probability = dropout,
                         .seed = MixSeed(ctx.dropout_seed, id)}));
  return out;
}

absl::Status Linear::MultiplyWeight(const LayerContext& ctx, const Tensor& x,
                                    const Tensor& y) const {
  return Gemm(ctx.exec, {.a = x, .b = weight_->value, .c = y, .trans_b = true});
}

absl::Status Linear::AddAdapter(const LayerContext& ctx,
                                const Tensor& y) const {
  return Gemm(ctx.exec, {.a = xa_,
                         .b = lora_.b->value,
                         .c = y,
                         .trans_b = true,
                         .alpha = lora_.scale,
                         .beta = 1});
}

absl::Status Linear::Forward(const LayerContext& ctx, const Tensor& x,
                             const Tensor& y) {
  CADRE_RETURN_IF_ERROR(MultiplyWeight(ctx, x, y));
  if (lora_.a == nullptr) return absl::OkStatus();
  xa_ = ctx.Saved({x.dim(0), lora_.a->value.dim(0)});
  ArenaScope scope(ctx.scratch);
  CADRE_ASSIGN_OR_RETURN(const Tensor dropped, lora_.Dropped(ctx, x));
  CADRE_RETURN_IF_ERROR(
      Gemm(ctx.exec,
           {.a = dropped, .b = lora_.a->value, .c = xa_, .trans_b = true}));
  return AddAdapter(ctx, y);
}

absl::Status Linear::ForwardAgain(const LayerContext& ctx, const Tensor& x,
                                  const Tensor& y) const {
  CADRE_RETURN_IF_ERROR(MultiplyWeight(ctx, x, y));
  return lora_.a == nullptr ? absl::OkStatus() : AddAdapter(ctx, y);
}

absl::Status Linear::Backward(const LayerContext& ctx, const Tensor& x,
                              const Tensor& wide_dy, const Tensor& dx,
                              bool accumulate) {
  ArenaScope scope(ctx.scratch);
  Tensor dy = wide_dy;
  if (dy.dtype() != x.dtype()) {
    // f32 gradients of gates and router logits beside bf16 operands.
    dy = ctx.Scratch({wide_dy.dim(0), wide_dy.dim(1)});
    CADRE_RETURN_IF_ERROR(Cast(ctx.exec, wide_dy, dy));
  }
  if (dx.present()) {
    CADRE_RETURN_IF_ERROR(Gemm(ctx.exec, {.a = dy,
                                          .b = weight_->value,
                                          .c = dx,
                                          .beta = accumulate ? 1.0 : 0.0}));
  }
  if (weight_->grad.present()) {
    CADRE_RETURN_IF_ERROR(Gemm(
        ctx.exec,
        {.a = dy, .b = x, .c = weight_->grad, .trans_a = true, .beta = 1}));
  }
  return lora_.a == nullptr ? absl::OkStatus() : LoraBackward(ctx, x, dy, dx);
}

// With p = s dy B: dB += s dy^T (x A^T), dA += p^T x, dx += p A.
absl::Status Linear::LoraBackward(const LayerContext& ctx, const Tensor& x,
                                  const Tensor& dy, const Tensor& dx) {
  ArenaScope scope(ctx.scratch);
  const int64_t num_tokens = x.dim(0), rank = lora_.a->value.dim(0);
  const Tensor p = ctx.Scratch({num_tokens, rank});
  CADRE_RETURN_IF_ERROR(Gemm(
      ctx.exec, {.a = dy, .b = lora_.b->value, .c = p, .alpha = lora_.scale}));
  CADRE_RETURN_IF_ERROR(Gemm(ctx.exec, {.a = dy,
                                        .b = xa_,
                                        .c = lora_.b->grad,
                                        .trans_a = true,
                                        .alpha = lora_.scale,
                                        .beta = 1}));
  CADRE_ASSIGN_OR_RETURN(const Tensor dropped, lora_.Dropped(ctx, x));
  CADRE_RETURN_IF_ERROR(Gemm(
      ctx.exec,
      {.a = p, .b = dropped, .c = lora_.a->grad, .trans_a = true, .beta = 1}));
  if (!dx.present()) return absl::OkStatus();
  if (lora_.dropout == 0 || !ctx.training) {
    return Gemm(ctx.exec, {.a = p, .b = lora_.a->value, .c = dx, .beta = 1});
  }
  // drop() is linear: its gradient is the same mask.
  const Tensor back = ctx.Scratch({num_tokens, x.dim(1)});
  CADRE_RETURN_IF_ERROR(
      Gemm(ctx.exec, {.a = p, .b = lora_.a->value, .c = back}));
  return Dropout(ctx.exec, {.x = back,
                            .y = dx,
                            .probability = lora_.dropout,
                            .seed = MixSeed(ctx.dropout_seed, lora_.id),
                            .accumulate = true});
}

}  // namespace cadre
