#include "worker/model/dense_units.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// Elements: every tensor begins on 64 bytes, whatever its type.
constexpr int64_t kAlignment = 32;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

FlatRegion& RegionOf(DenseUnit& unit, DType dtype) {
  for (FlatRegion& region : unit.regions) {
    if (region.dtype == dtype) return region;
  }
  unit.regions.push_back({.dtype = dtype});
  return unit.regions.back();
}

}  // namespace

absl::Status DenseUnits::Add(const std::string& name,
                             absl::Span<Parameter* const> parameters) {
  DenseUnit unit{.name = name};
  for (Parameter* parameter : parameters) {
    FlatRegion& region = RegionOf(unit, parameter->value.dtype());
    region.members.push_back({parameter, region.num_elements});
    region.num_elements += RoundUp(parameter->value.num_elements(), kAlignment);
    region.trained |= parameter->trainable;
    parameter->unit = static_cast<int>(units_.size());
  }
  for (FlatRegion& region : unit.regions) {
    region.num_elements =
        RoundUp(region.num_elements, kAlignment * sharding_.num_shards);
    region.slice_elements = region.num_elements / sharding_.num_shards;
    CADRE_ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::Create(exec_, region.slice_elements * SizeOf(region.dtype),
                       "weights"));
    slices_.push_back(std::move(buffer));
    region.slice = slices_.back().View(region.dtype, {region.slice_elements});
  }
  units_.push_back(std::move(unit));
  return absl::OkStatus();
}

absl::Status DenseUnits::Store(const Parameter& parameter,
                               const Tensor& whole) {
  CADRE_CHECK(parameter.unit >= 0) << parameter.name;
  for (const FlatRegion& region : units_[parameter.unit].regions) {
    for (const FlatRegion::Member& member : region.members) {
      if (member.parameter != &parameter) continue;
      const int64_t slice = sharding_.shard * region.slice_elements;
      const int64_t begin = std::max(member.begin, slice);
      const int64_t end = std::min(member.begin + whole.num_elements(),
                                   slice + region.slice_elements);
      if (begin >= end) return absl::OkStatus();
      return CopyOnDevice(
          exec_, FlatPart(whole, begin - member.begin, end - member.begin),
          FlatPart(region.slice, begin - slice, end - slice));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
