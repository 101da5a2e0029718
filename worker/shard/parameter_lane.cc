#include "worker/shard/parameter_lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cast/cast.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// Slices end on 64 bytes.
constexpr int64_t kAlignment = 16;

absl::Status CheckTravels(const Parameter& parameter, const char* what,
                          const Tensor& t, bool narrow) {
  if (t.dtype() == DType::kF32 || (narrow && t.dtype() == DType::kBF16)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "sharing the ", what, " of ", parameter.name, " out over ranks: it is ",
      t.DebugString(), ", only f32 is moved"));
}

absl::Status Convert(const Exec& exec, const Tensor& from, const Tensor& to) {
  return from.dtype() == to.dtype() ? CopyOnDevice(exec, from, to)
                                    : Cast(exec, from, to);
}

absl::Span<float> Floats(const Tensor& t) {
  return absl::MakeSpan(static_cast<float*>(t.raw()), t.num_elements());
}

}  // namespace

absl::StatusOr<ParameterLane> ParameterLane::Create(
    const Exec& exec, std::vector<Parameter*> parameters,
    const LaneGroups& groups, int64_t max_elements) {
  ParameterLane lane(exec);
  lane.parameters_ = std::move(parameters);
  lane.groups_ = groups;
  if (groups.slices != nullptr) {
    lane.num_slices_ = groups.slices->size();
    lane.slice_ = groups.slices->rank();
  }
  const bool travels = groups.slices != nullptr || groups.copies != nullptr;
  lane.begins_ = {0};
  for (const Parameter* parameter : lane.parameters_) {
    if (travels) {
      CADRE_RETURN_IF_ERROR(CheckTravels(*parameter, "gradient",
                                         parameter->grad, /*narrow=*/false));
      CADRE_RETURN_IF_ERROR(CheckTravels(*parameter, "value", parameter->value,
                                         exec.backend == Backend::kCuda));
    }
    lane.begins_.push_back(lane.begins_.back() +
                           parameter->value.num_elements());
  }
  const int64_t unit = kAlignment * lane.num_slices_;
  const int64_t total = (lane.begins_.back() + unit - 1) / unit * unit;
  lane.slice_elements_ = total / lane.num_slices_;
  lane.piece_elements_ =
      std::min(lane.slice_elements_,
               std::max(max_elements / unit, int64_t{1}) * kAlignment);
  if (travels && lane.piece_elements_ > 0) {
    const int64_t elements = lane.piece_elements_ * (lane.num_slices_ + 1);
    CADRE_ASSIGN_OR_RETURN(
        lane.buffer_,
        Buffer::Create(exec, elements * SizeOf(DType::kF32), "reduce buffer"));
  }
  return lane;
}

// visit(parameter, first element of it, elements, offset from `begin`).
template <typename Visit>
absl::Status ParameterLane::ForEachPart(int64_t begin, int64_t n,
                                        Visit visit) const {
  const int64_t end = begin + n;
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
  for (size_t i = after - begins_.begin() - 1; i < parameters_.size(); ++i) {
    const int64_t from = std::max(begin, begins_[i]);
    const int64_t to = std::min(end, begins_[i + 1]);
    if (begins_[i] >= end) break;
    if (from >= to) continue;
    CADRE_RETURN_IF_ERROR(
        visit(parameters_[i], from - begins_[i], to - from, from - begin));
  }
  return absl::OkStatus();
}

absl::Status ParameterLane::Read(Which which, int64_t begin,
                                 const Tensor& out) const {
  const int64_t n = out.num_elements();
  int64_t read = 0;
  CADRE_RETURN_IF_ERROR(
      ForEachPart(begin, n,
                  [&](const Parameter* parameter, int64_t first, int64_t count,
                      int64_t offset) {
                    const Tensor& t = which == Which::kValue ? parameter->value
                                                             : parameter->grad;
                    read = offset + count;
                    return Convert(exec_, FlatPart(t, first, first + count),
                                   FlatPart(out, offset, offset + count));
                  }));
  return SetZero(exec_, FlatPart(out, read, n));
}

absl::Status ParameterLane::Write(Which which, int64_t begin,
                                  const Tensor& in) const {
  return ForEachPart(
      begin, in.num_elements(),
      [&](const Parameter* parameter, int64_t first, int64_t count,
          int64_t offset) {
        const Tensor& t =
            which == Which::kValue ? parameter->value : parameter->grad;
        return Convert(exec_, FlatPart(in, offset, offset + count),
                       FlatPart(t, first, first + count));
      });
}

absl::Status ParameterLane::ReduceGradients() {
  if (buffer_.num_bytes() == 0) return absl::OkStatus();
  for (int64_t at = 0; at < slice_elements_; at += piece_elements_) {
    const int64_t n = std::min(piece_elements_, slice_elements_ - at);
    for (int s = 0; s < num_slices_; ++s) {
      CADRE_RETURN_IF_ERROR(
          Read(Which::kGrad, s * slice_elements_ + at, BufferPart(s * n, n)));
    }
    Tensor sum = BufferPart(0, n);
    if (groups_.slices != nullptr) {
      sum = BufferPart(num_slices_ * n, n);
      CADRE_RETURN_IF_ERROR(groups_.slices->ReduceScatterSum(
          Floats(BufferPart(0, num_slices_ * n)), Floats(sum)));
    }
    if (groups_.copies != nullptr) {
      CADRE_RETURN_IF_ERROR(groups_.copies->AllReduceSum(Floats(sum)));
    }
    CADRE_RETURN_IF_ERROR(
        Write(Which::kGrad, slice_ * slice_elements_ + at, sum));
  }
  return absl::OkStatus();
}

absl::Status ParameterLane::GatherValues() {
  if (groups_.slices == nullptr || buffer_.num_bytes() == 0) {
    return absl::OkStatus();
  }
  for (int64_t at = 0; at < slice_elements_; at += piece_elements_) {
    const int64_t n = std::min(piece_elements_, slice_elements_ - at);
    const Tensor mine = BufferPart(num_slices_ * n, n);
    CADRE_RETURN_IF_ERROR(
        Read(Which::kValue, slice_ * slice_elements_ + at, mine));
    CADRE_RETURN_IF_ERROR(groups_.slices->AllGather(
        Floats(mine), Floats(BufferPart(0, num_slices_ * n))));
    for (int s = 0; s < num_slices_; ++s) {
      if (s == slice_) continue;
      CADRE_RETURN_IF_ERROR(
          Write(Which::kValue, s * slice_elements_ + at, BufferPart(s * n, n)));
    }
  }
  return absl::OkStatus();
}

std::vector<OwnedSlice> ParameterLane::Owned() const {
  std::vector<OwnedSlice> owned;
  ForEachPart(
      slice_ * slice_elements_, slice_elements_,
      [&](Parameter* parameter, int64_t first, int64_t count,
          int64_t /*offset*/) {
        owned.push_back(
            {.parameter = parameter, .begin = first, .end = first + count});
        return absl::OkStatus();
      })
      .IgnoreError();
  return owned;
}

}  // namespace cadre
