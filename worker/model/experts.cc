#include "worker/model/experts.h"

#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "worker/model/glu_activation.h"

namespace cadre {
namespace {

using Mode = GroupedGemmMode;

absl::Status Product(const LayerContext& ctx, Mode mode, const Tensor& x,
                     const Tensor& w, const Tensor& y, const Tensor& offsets,
                     double alpha, bool accumulate) {
  return GroupedGemm(ctx.exec, {.mode = mode,
                                .x = x,
                                .w = w,
                                .y = y,
                                .offsets = offsets,
                                .alpha = alpha,
                                .accumulate = accumulate});
}

}  // namespace

absl::Status GroupedLora::Forward(const LayerContext& ctx, const Tensor& x,
                                  const Tensor& offsets, const Tensor& y,
                                  int64_t column) {
  if (lora_.a == nullptr) return absl::OkStatus();
  const int64_t rows = x.dim(0), out = lora_.b->value.dim(1);
  xa_ = ctx.Saved({rows, lora_.a->value.dim(1)});
  ArenaScope scope(ctx.scratch);
  CADRE_ASSIGN_OR_RETURN(const Tensor dropped, lora_.Dropped(ctx, x));
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kNT, dropped, lora_.a->value, xa_, offsets, 1, false));
  if (y.dim(1) == out) {
    return Product(ctx, Mode::kNT, xa_, lora_.b->value, y, offsets, lora_.scale,
                   true);
  }
  const Tensor part = ctx.Scratch({rows, out});
  CADRE_RETURN_IF_ERROR(Product(ctx, Mode::kNT, xa_, lora_.b->value, part,
                                offsets, lora_.scale, false));
  return CopyColumns(ctx.exec, {.src = part,
                                .dst = y,
                                .rows = rows,
                                .dst_column = column,
                                .width = out,
                                .accumulate = true});
}

absl::Status GroupedLora::Backward(const LayerContext& ctx, const Tensor& x,
                                   const Tensor& offsets, const Tensor& dy,
                                   int64_t column, const Tensor& dx) {
  if (lora_.a == nullptr) return absl::OkStatus();
  ArenaScope scope(ctx.scratch);
  const int64_t rows = x.dim(0), out = lora_.b->value.dim(1);
  Tensor part = dy;
  if (dy.dim(1) != out) {
    part = ctx.Scratch({rows, out});
    CADRE_RETURN_IF_ERROR(CopyColumns(ctx.exec, {.src = dy,
                                                 .dst = part,
                                                 .rows = rows,
                                                 .src_column = column,
                                                 .width = out}));
  }
  const Tensor p = ctx.Scratch({rows, lora_.a->value.dim(1)});
  CADRE_RETURN_IF_ERROR(Product(ctx, Mode::kNN, p, lora_.b->value, part,
                                offsets, lora_.scale, false));
  CADRE_RETURN_IF_ERROR(Product(ctx, Mode::kTN, xa_, lora_.b->grad, part,
                                offsets, lora_.scale, true));
  CADRE_ASSIGN_OR_RETURN(const Tensor dropped, lora_.Dropped(ctx, x));
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kTN, dropped, lora_.a->grad, p, offsets, 1, true));
  if (lora_.dropout == 0 || !ctx.training) {
    return Product(ctx, Mode::kNN, dx, lora_.a->value, p, offsets, 1, true);
  }
  const Tensor back = ctx.Scratch({rows, x.dim(1)});
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kNN, back, lora_.a->value, p, offsets, 1, false));
  return Dropout(ctx.exec, {.x = back,
                            .y = dx,
                            .probability = lora_.dropout,
                            .seed = MixSeed(ctx.dropout_seed, lora_.id),
                            .accumulate = true});
}

absl::StatusOr<Experts> Experts::Create(const ActivationSpec& activation,
                                        const LayerBuilder& builder) {
  Experts m;
  m.activation_ = activation;
  CADRE_ASSIGN_OR_RETURN(m.gate_up_, builder.Param("mlp.experts.gate_up_proj"));
  CADRE_ASSIGN_OR_RETURN(m.down_, builder.Param("mlp.experts.down_proj"));
  const auto bind = [&](const char* name, GroupedLora* to) -> absl::Status {
    CADRE_ASSIGN_OR_RETURN(LoraBranch branch, builder.Adapter(name));
    *to = GroupedLora(branch);
    return absl::OkStatus();
  };
  CADRE_RETURN_IF_ERROR(bind("mlp.experts.gate_up_proj", &m.lora_gate_up_));
  CADRE_RETURN_IF_ERROR(bind("mlp.experts.gate_proj", &m.lora_gate_));
  CADRE_RETURN_IF_ERROR(bind("mlp.experts.up_proj", &m.lora_up_));
  CADRE_RETURN_IF_ERROR(bind("mlp.experts.down_proj", &m.lora_down_));
  return m;
}

absl::Status Experts::Forward(const LayerContext& ctx, const Tensor& rows,
                              const Tensor& offsets, const Tensor& out) {
  const int64_t R = rows.dim(0), F = down_->value.dim(2);
  rows_ = rows;
  offsets_ = offsets;
  pre_ = ctx.Saved({R, 2 * F});
  h_ = ctx.Saved({R, F});
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kNT, rows, gate_up_->value, pre_, offsets, 1, false));
  // Adapters come before the activation.
  CADRE_RETURN_IF_ERROR(lora_gate_up_.Forward(ctx, rows, offsets, pre_, 0));
  CADRE_RETURN_IF_ERROR(lora_gate_.Forward(ctx, rows, offsets, pre_, 0));
  CADRE_RETURN_IF_ERROR(lora_up_.Forward(ctx, rows, offsets, pre_, F));
  CADRE_RETURN_IF_ERROR(GluForward(
      ctx.exec,
      {.gate_up = pre_, .activation = ToGluActivation(activation_), .h = h_}));
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kNT, h_, down_->value, out, offsets, 1, false));
  return lora_down_.Forward(ctx, h_, offsets, out, 0);
}

absl::Status Experts::Backward(const LayerContext& ctx, const Tensor& d_out,
                               const Tensor& d_rows) {
  ArenaScope scope(ctx.scratch);
  const int64_t R = rows_.dim(0), F = down_->value.dim(2);
  const Tensor dh = ctx.Scratch({R, F});
  CADRE_RETURN_IF_ERROR(
      Product(ctx, Mode::kNN, dh, down_->value, d_out, offsets_, 1, false));
  CADRE_RETURN_IF_ERROR(lora_down_.Backward(ctx, h_, offsets_, d_out, 0, dh));
  if (down_->grad.present()) {
    CADRE_RETURN_IF_ERROR(
        Product(ctx, Mode::kTN, h_, down_->grad, d_out, offsets_, 1, true));
  }
  const Tensor d_pre = ctx.Scratch({R, 2 * F});
  CADRE_RETURN_IF_ERROR(
      GluBackward(ctx.exec, {.gate_up = pre_,
                             .activation = ToGluActivation(activation_),
                             .dh = dh,
                             .dgate_up = d_pre}));
  CADRE_RETURN_IF_ERROR(Product(ctx, Mode::kNN, d_rows, gate_up_->value, d_pre,
                                offsets_, 1, false));
  CADRE_RETURN_IF_ERROR(
      lora_gate_up_.Backward(ctx, rows_, offsets_, d_pre, 0, d_rows));
  CADRE_RETURN_IF_ERROR(
      lora_gate_.Backward(ctx, rows_, offsets_, d_pre, 0, d_rows));
  CADRE_RETURN_IF_ERROR(
      lora_up_.Backward(ctx, rows_, offsets_, d_pre, F, d_rows));
  if (gate_up_->grad.present()) {
    CADRE_RETURN_IF_ERROR(Product(ctx, Mode::kTN, rows_, gate_up_->grad, d_pre,
                                  offsets_, 1, true));
  }
  return absl::OkStatus();
}

}  // namespace cadre
