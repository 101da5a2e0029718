#include "worker/model/stream_ends.h"

#include <variant>

#include "base/status_macros.h"
#include "kernels/hyper_connection/hyper_connection.h"

namespace cadre {

absl::StatusOr<StreamEnds> StreamEnds::Create(const ModelSpec& spec,
                                              const LayerBuilder& builder) {
  StreamEnds ends;
  ends.hidden_ = spec.hidden_size;
  if (const auto* hyper = std::get_if<HyperConnections>(&spec.residual)) {
    ends.multiplicity_ = hyper->multiplicity;
  } else if (std::holds_alternative<AttentionResiduals>(spec.residual)) {
    ends.mixes_ = true;
    CADRE_ASSIGN_OR_RETURN(
        ends.mix_, ResidualMix::Create(spec.tensor_prefix + "output_attn",
                                       spec.norm_eps, builder));
  }
  return ends;
}

Tensor StreamEnds::NewState(Arena* arena, DType dtype,
                            int64_t num_tokens) const {
  if (multiplicity_ > 0) {
    return arena->Allocate(dtype, {num_tokens, multiplicity_, hidden_});
  }
  return arena->Allocate(dtype, {num_tokens, hidden_});
}

absl::Status StreamEnds::Begin(const LayerContext& ctx, const Tensor& x,
                               const Tensor& state) const {
  if (Flat()) return absl::OkStatus();
  return StreamsBroadcast(ctx.exec, {.x = x, .streams = state});
}

absl::Status StreamEnds::BeginBackward(const LayerContext& ctx,
                                       const Tensor& d_state,
                                       const Tensor& dx) const {
  if (Flat()) return absl::OkStatus();
  return StreamsSum(ctx.exec, {.x = dx, .streams = d_state});
}

absl::StatusOr<Tensor> StreamEnds::End(const LayerContext& ctx,
                                       const Stream& stream) {
  if (Flat() && !mixes_) return stream.state;
  const Tensor x = ctx.Saved({ctx.num_tokens, hidden_});
  if (mixes_) {
    CADRE_RETURN_IF_ERROR(mix_.Forward(ctx, stream.bank, stream.state, x));
  } else {
    CADRE_RETURN_IF_ERROR(StreamsSum(
        ctx.exec, {.x = x,
                   .streams = stream.state,
                   .factor = 1.0 / static_cast<double>(multiplicity_)}));
  }
  return x;
}

absl::StatusOr<Stream> StreamEnds::EndBackward(const LayerContext& ctx,
                                               const Stream& stream,
                                               const Tensor& dx) {
  const int64_t T = ctx.num_tokens;
  if (Flat() && !mixes_) return Stream{.state = dx};
  if (!mixes_) {
    Stream grad{.state = NewState(ctx.scratch, ctx.dtype, T)};
    CADRE_RETURN_IF_ERROR(StreamsBroadcast(
        ctx.exec, {.x = dx,
                   .streams = grad.state,
                   .factor = 1.0 / static_cast<double>(multiplicity_)}));
    return grad;
  }
  // The mix adds to its gradients, and later mixes to the bank's.
  Stream grad{.state = ctx.scratch->AllocateZero(ctx.dtype, {T, hidden_})};
  for (size_t i = 0; i < stream.bank.size(); ++i) {
    grad.bank.push_back(ctx.scratch->AllocateZero(ctx.dtype, {T, hidden_}));
  }
  CADRE_RETURN_IF_ERROR(mix_.Backward(ctx, dx, grad.bank, grad.state));
  return grad;
}

}  // namespace cadre
