#include "worker/model/pass_units.h"

#include "absl/strings/str_cat.h"

namespace cadre {

void PassUnits::Plan(const Shape& shape) {
  shape_ = shape;
  if (shape.num_shards <= 1) return;
  const int blocks = shape.num_blocks;
  // A head that is the embedding lies in its unit, as the final norm does then.
  const int head = shape.tied_head ? 0 : blocks + 1;
  for (int unit = 0; unit <= blocks; ++unit) {
    forward_.push_back({unit, UnitUse::kValues});
  }
  training_ = forward_;
  forward_.push_back({head, UnitUse::kValues});
  training_.push_back({head, UnitUse::kValuesAndGradients});
  for (int unit = blocks; unit > 0; --unit) {
    training_.push_back({unit, UnitUse::kValuesAndGradients});
  }
  if (shape.trains_embedding) training_.push_back({0, UnitUse::kGradients});
}

absl::Status PassUnits::Connect(UnitAccess* access) {
  if ((access == nullptr) != forward_.empty()) {
    return absl::InternalError(
        absl::StrCat("the dense parameters of the model are in ",
                     shape_.num_shards, " shards and units are ",
                     access == nullptr ? "not brought" : "brought"));
  }
  access_ = access;
  return absl::OkStatus();
}

absl::Status PassUnits::Begin(bool training) {
  if (access_ != nullptr) {
    return access_->BeginPass(training ? training_ : forward_);
  }
  if (forward_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the model's dense parameters are in shards and it is not connected "
      "to the other ranks");
}

}  // namespace cadre
