#include "worker/shard/parameter_lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// Slices end on 64 bytes.
constexpr int64_t kAlignment = 16;

absl::Status CheckF32(const Parameter& parameter, const char* what,
                      const Tensor& t) {
  if (t.dtype() == DType::kF32) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "sharing the ", what, " of ", parameter.name, " out over ranks: it is ",
      t.DebugString(), ", only f32 is moved"));
}

}  // namespace

absl::StatusOr<ParameterLane> ParameterLane::Create(
    const Exec& exec, std::vector<Parameter*> parameters,
    const LaneGroups& groups, int64_t max_elements) {
  ParameterLane lane;
  lane.parameters_ = std::move(parameters);
  lane.groups_ = groups;
  if (groups.slices != nullptr) {
    lane.num_slices_ = groups.slices->size();
    lane.slice_ = groups.slices->rank();
  }
  const bool travels = groups.slices != nullptr || groups.copies != nullptr;
  if (travels && exec.backend != Backend::kCpu) {
    return absl::UnimplementedError(
        "sharing adapters and experts out over ranks: done on the CPU only");
  }
  lane.begins_ = {0};
  for (const Parameter* parameter : lane.parameters_) {
    if (travels) {
      CADRE_RETURN_IF_ERROR(CheckF32(*parameter, "gradient", parameter->grad));
      CADRE_RETURN_IF_ERROR(CheckF32(*parameter, "value", parameter->value));
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
    lane.buffer_.resize(lane.piece_elements_ * (lane.num_slices_ + 1));
  }
  return lane;
}

// visit(parameter, first element of it, elements, offset from `begin`).
template <typename Visit>
void ParameterLane::ForEachPart(int64_t begin, int64_t n, Visit visit) const {
  const int64_t end = begin + n;
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
  for (size_t i = after - begins_.begin() - 1; i < parameters_.size(); ++i) {
    const int64_t from = std::max(begin, begins_[i]);
    const int64_t to = std::min(end, begins_[i + 1]);
    if (begins_[i] >= end) break;
    if (from < to)
      visit(parameters_[i], from - begins_[i], to - from, from - begin);
  }
}

void ParameterLane::Read(Which which, int64_t begin, int64_t n,
                         float* out) const {
  int64_t read = 0;
  ForEachPart(begin, n,
              [&](const Parameter* parameter, int64_t first, int64_t count,
                  int64_t offset) {
                const Tensor& t =
                    which == Which::kValue ? parameter->value : parameter->grad;
                std::copy_n(t.data<float>() + first, count, out + offset);
                read = offset + count;
              });
  std::fill(out + read, out + n, 0.0f);
}

void ParameterLane::Write(Which which, int64_t begin, int64_t n,
                          const float* in) const {
  ForEachPart(begin, n,
              [&](const Parameter* parameter, int64_t first, int64_t count,
                  int64_t offset) {
                const Tensor& t =
                    which == Which::kValue ? parameter->value : parameter->grad;
                std::copy_n(in + offset, count, t.data<float>() + first);
              });
}

absl::Status ParameterLane::ReduceGradients() {
  if (buffer_.empty()) return absl::OkStatus();
  for (int64_t at = 0; at < slice_elements_; at += piece_elements_) {
    const int64_t n = std::min(piece_elements_, slice_elements_ - at);
    for (int s = 0; s < num_slices_; ++s) {
      Read(Which::kGrad, s * slice_elements_ + at, n, buffer_.data() + s * n);
    }
    float* sum = buffer_.data();
    if (groups_.slices != nullptr) {
      sum = buffer_.data() + num_slices_ * n;
      CADRE_RETURN_IF_ERROR(groups_.slices->ReduceScatterSum(
          absl::MakeConstSpan(buffer_.data(), num_slices_ * n),
          absl::MakeSpan(sum, n)));
    }
    if (groups_.copies != nullptr) {
      CADRE_RETURN_IF_ERROR(
          groups_.copies->AllReduceSum(absl::MakeSpan(sum, n)));
    }
    Write(Which::kGrad, slice_ * slice_elements_ + at, n, sum);
  }
  return absl::OkStatus();
}

absl::Status ParameterLane::GatherValues() {
  if (groups_.slices == nullptr || buffer_.empty()) return absl::OkStatus();
  for (int64_t at = 0; at < slice_elements_; at += piece_elements_) {
    const int64_t n = std::min(piece_elements_, slice_elements_ - at);
    float* const mine = buffer_.data() + num_slices_ * n;
    Read(Which::kValue, slice_ * slice_elements_ + at, n, mine);
    CADRE_RETURN_IF_ERROR(groups_.slices->AllGather(
        absl::MakeConstSpan(mine, n),
        absl::MakeSpan(buffer_.data(), num_slices_ * n)));
    for (int s = 0; s < num_slices_; ++s) {
      if (s == slice_) continue;
      Write(Which::kValue, s * slice_elements_ + at, n, buffer_.data() + s * n);
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
      });
  return owned;
}

}  // namespace cadre
