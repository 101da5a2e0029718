#include "worker/model/rope_table.h"

#include "kernels/rope/rope.h"
#include "kernels/rope/rope_frequencies.h"

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

absl::Status RopeTable::Forward(const LayerContext& ctx, const Tensor& x,
                                int64_t offset) const {
  return RopeForward(
      ctx.exec,
      {.x = x,
       .positions = ctx.positions,
       .inv_freq = Tensor(inv_freq_.data(), DType::kF32, {spec_.dim / 2}),
       .offset = offset,
       .interleaved = spec_.interleaved,
       .attention_factor = spec_.attention_factor});
}

absl::Status RopeTable::Backward(const LayerContext& ctx, const Tensor& dx,
                                 int64_t offset) const {
  return RopeBackward(
      ctx.exec,
      {.x = dx,
       .positions = ctx.positions,
       .inv_freq = Tensor(inv_freq_.data(), DType::kF32, {spec_.dim / 2}),
       .offset = offset,
       .interleaved = spec_.interleaved,
       .attention_factor = spec_.attention_factor});
}

}  // namespace cadre
