#include "worker/model/routed_experts.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/moe_permute/moe_permute.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// For the count of rows that fill tiles: the model looks when the pass is over.
absl::Status TellBatch(const LayerContext& ctx, const Tensor& offsets) {
  if (ctx.replay || ctx.routers == nullptr ||
      ctx.routers->expert_tokens.empty()) {
    return absl::OkStatus();
  }
  const Tensor kept = ctx.kept->Allocate(DType::kI32, {offsets.dim(0)});
  CADRE_RETURN_IF_ERROR(ctx.kept->status());
  // A router has told of its layer before.
  ctx.routers->expert_batches.push_back(
      {.layer = ctx.routers->expert_tokens.size() - 1, .offsets = kept});
  return CopyOnDevice(ctx.exec, offsets, kept);
}

}  // namespace

absl::Status RoutedExperts::Forward(const LayerContext& ctx, const Tensor& in,
                                    const Tensor& slots, const Tensor& weights,
                                    const Tensor& out, int64_t max_pairs) {
  PhaseScope dispatch(ctx.phases, Phase::kDispatch);
  const int64_t width = in.dim(1), E = experts_.num_experts();
  weights_ = weights;
  offsets_ = ctx.saved->Allocate(DType::kI32, {E + 1});
  row_source_ = ctx.saved->Allocate(DType::kI32, {slots.num_elements()});
  row_of_ = ctx.saved->Allocate(DType::kI32, {slots.dim(0), slots.dim(1)});
  CADRE_RETURN_IF_ERROR(MoePermute(ctx.exec, {.ids = slots,
                                              .offsets = offsets_,
                                              .row_source = row_source_,
                                              .row_of = row_of_}));
  CADRE_RETURN_IF_ERROR(TellBatch(ctx, offsets_));
  // Padding tokens have no rows. On a GPU their number is not known here:
  // there the rows behind the last expert's are left over.
  const int64_t R = ctx.exec.backend == Backend::kCuda
                        ? std::min(row_source_.num_elements(), max_pairs)
                        : offsets_.data<int32_t>()[E];
  const Tensor rows = ctx.Saved({R, width});
  expert_out_ = ctx.Saved({R, width});
  CADRE_RETURN_IF_ERROR(MoeGather(ctx.exec, {.x = in,
                                             .row_source = row_source_,
                                             .top_k = slots.dim(1),
                                             .rows = rows}));
  {
    PhaseScope phase(ctx.phases, Phase::kExperts);
    CADRE_RETURN_IF_ERROR(experts_.Forward(ctx, rows, offsets_, expert_out_));
  }
  if (!out.present()) return absl::OkStatus();
  PhaseScope combine(ctx.phases, Phase::kCombine);
  return MoeCombine(
      ctx.exec,
      {.rows = expert_out_, .row_of = row_of_, .weights = weights_, .y = out});
}

absl::Status RoutedExperts::Backward(const LayerContext& ctx,
                                     const Tensor& d_out,
                                     const Tensor& d_weights,
                                     const Tensor& d_in, bool accumulate) {
  PhaseScope combine(ctx.phases, Phase::kCombine);
  ArenaScope scope(ctx.scratch);
  const int64_t R = expert_out_.dim(0), width = expert_out_.dim(1);
  const Tensor d_expert_out = ctx.Scratch({R, width});
  const Tensor d_rows = ctx.Scratch({R, width});
  CADRE_RETURN_IF_ERROR(MoeCombineBackward(ctx.exec, {.dy = d_out,
                                                      .row_source = row_source_,
                                                      .row_of = row_of_,
                                                      .weights = weights_,
                                                      .rows = expert_out_,
                                                      .drows = d_expert_out,
                                                      .dweights = d_weights}));
  {
    PhaseScope phase(ctx.phases, Phase::kExperts);
    CADRE_RETURN_IF_ERROR(experts_.Backward(ctx, d_expert_out, d_rows));
  }
  PhaseScope dispatch(ctx.phases, Phase::kDispatch);
  return MoeCombine(
      ctx.exec,
      {.rows = d_rows, .row_of = row_of_, .y = d_in, .accumulate = accumulate});
}

}  // namespace cadre
