#include "worker/model/rope_table.h"

#include "base/status_macros.h"
#include "kernels/rope/rope.h"
#include "kernels/rope/rope_frequencies.h"
#include "worker/device/transfer.h"

namespace cadre {

RopeTable::RopeTable(const RopeSpec& spec) : spec_(spec) {
  if (spec.type == RopeSpec::Type::kYarn) {
    inv_freq_ = YarnInverseFrequencies(
        spec.dim, spec.theta,
        {.factor = spec.yarn_factor,
         .original_max_positions = spec.yarn_original_max_positions,
         .beta_fast = spec.yarn_beta_fast,
         .beta_slow = spec.yarn_beta_slow,
         .truncate = spec.yarn_truncate});
  } else {
    inv_freq_ = RopeInverseFrequencies(spec.dim, spec.theta);
  }
}

absl::StatusOr<Tensor> RopeTable::InverseFrequencies(
    const LayerContext& ctx) const {
  const Tensor host(inv_freq_.data(), DType::kF32, {spec_.dim / 2});
  if (ctx.exec.backend == Backend::kCpu) return host;
  if (device_inv_freq_.num_bytes() == 0) {
    CADRE_ASSIGN_OR_RETURN(
        device_inv_freq_,
        Buffer::Create(ctx.exec, host.num_bytes(), "rope frequencies"));
    CADRE_RETURN_IF_ERROR(CopyToDevice(
        ctx.exec, host.raw(), device_inv_freq_.View(DType::kF32, host.dims())));
  }
  return device_inv_freq_.View(DType::kF32, host.dims());
}

absl::Status RopeTable::Forward(const LayerContext& ctx, const Tensor& x,
                                int64_t offset) const {
  CADRE_ASSIGN_OR_RETURN(const Tensor inv_freq, InverseFrequencies(ctx));
  return RopeForward(ctx.exec, {.x = x,
                                .positions = ctx.positions,
                                .inv_freq = inv_freq,
                                .offset = offset,
                                .interleaved = spec_.interleaved,
                                .attention_factor = spec_.attention_factor});
}

absl::Status RopeTable::Backward(const LayerContext& ctx, const Tensor& dx,
                                 int64_t offset) const {
  CADRE_ASSIGN_OR_RETURN(const Tensor inv_freq, InverseFrequencies(ctx));
  return RopeBackward(ctx.exec, {.x = dx,
                                 .positions = ctx.positions,
                                 .inv_freq = inv_freq,
                                 .offset = offset,
                                 .interleaved = spec_.interleaved,
                                 .attention_factor = spec_.attention_factor});
}

}  // namespace cadre
