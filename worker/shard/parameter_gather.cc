#include "worker/shard/parameter_gather.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/transfer.h"
#include "worker/shard/owned_slice.h"

namespace cadre {
namespace {

// Elements asked for at a time.
constexpr int64_t kPiece = int64_t{4} << 20;

// A request: 1 + the parameter's number, or kDone; begin; end.
constexpr int64_t kDone = -1;

}  // namespace

ParameterGather::ParameterGather(const Exec& exec,
                                 ParameterRegistry* parameters,
                                 const DenseUnits* units,
                                 const MeshCommunicators* communicators,
                                 const Optimizer* optimizer)
    : exec_(exec),
      parameters_(parameters),
      units_(units),
      communicators_(communicators),
      has_optimizer_(optimizer != nullptr) {
  if (optimizer == nullptr) return;
  for (const Optimizer::Slot& slot : optimizer->slots()) {
    if (slot.slice.counted) trained_[slot.slice.parameter].push_back(&slot);
  }
}

std::vector<ParameterGather::Part> ParameterGather::TrainedPartsOf(
    const Parameter& parameter, int64_t begin, int64_t end) const {
  std::vector<Part> parts;
  const auto slots = trained_.find(&parameter);
  if (slots == trained_.end()) return parts;
  for (const Optimizer::Slot* slot : slots->second) {
    for (const Stretch& home : HomeStretches(slot->slice)) {
      const int64_t from = std::max(begin, home.global_begin);
      const int64_t to = std::min(end, home.global_begin + home.size);
      if (from >= to) continue;
      const int64_t offset = home.begin + from - home.global_begin;
      parts.push_back(
          {from, FlatPart(slot->weight(), offset, offset + to - from)});
    }
  }
  return parts;
}

std::vector<ParameterGather::Part> ParameterGather::PartsOf(
    const Parameter& parameter, int64_t begin, int64_t end) const {
  if (has_optimizer_ && parameter.trainable) {
    return TrainedPartsOf(parameter, begin, end);
  }
  const MeshCoordinates at = communicators_->coordinates();
  std::vector<Part> parts;
  // Elements [first, first + n) of the whole tensor are `value` from `offset`.
  const auto add = [&](int64_t first, int64_t n, const Tensor& value,
                       int64_t offset) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + n);
    if (from >= to) return;
    offset += from - first;
    parts.push_back({from, FlatPart(value, offset, offset + to - from)});
  };
  if (parameter.unit >= 0) {
    if (at.replica != 0) return parts;
    for (const FlatRegion& region : units_->units()[parameter.unit].regions) {
      const int64_t slice = at.shard * region.slice_elements;
      for (const FlatRegion::Member& member : region.members) {
        if (member.parameter != &parameter) continue;
        const int64_t first = std::max(member.begin, slice);
        const int64_t last =
            std::min(member.begin + parameter.value.num_elements(),
                     slice + region.slice_elements);
        if (first < last) {
          add(first - member.begin, last - first, region.slice, first - slice);
        }
      }
    }
  } else if (parameter.rows.empty()) {
    if (communicators_->world()->rank() != 0) return parts;
    add(0, parameter.value.num_elements(), parameter.value, 0);
  } else {
    if (at.edp != 0) return parts;
    const int64_t width = parameter.value.num_elements() /
                          static_cast<int64_t>(parameter.rows.size());
    for (size_t i = 0; i < parameter.rows.size(); ++i) {
      const HeldRow& row = parameter.rows[i];
      if (row.home && row.index >= 0) {
        add(row.index * width, width, parameter.value,
            static_cast<int64_t>(i) * width);
      }
    }
  }
  return parts;
}

absl::Status ParameterGather::Fetch(const Parameter& parameter, int64_t begin,
                                    absl::Span<float> out) {
  const auto& all = parameters_->all();
  const int64_t number =
      std::find(all.begin(), all.end(), &parameter) - all.begin();
  const int64_t n = static_cast<int64_t>(out.size());
  for (int64_t at = 0; at < n; at += kPiece) {
    Request request{.parameter = number,
                    .begin = begin + at,
                    .end = begin + std::min(n, at + kPiece)};
    std::array<int64_t, 3> announced = {1 + number, request.begin, request.end};
    CADRE_RETURN_IF_ERROR(
        communicators_->world()->AllReduceSum(absl::MakeSpan(announced)));
    CADRE_RETURN_IF_ERROR(
        Exchange(request, out.subspan(at, request.end - request.begin)));
  }
  return absl::OkStatus();
}

absl::Status ParameterGather::Finish() {
  std::array<int64_t, 3> announced = {kDone, 0, 0};
  return communicators_->world()->AllReduceSum(absl::MakeSpan(announced));
}

absl::Status ParameterGather::Serve() {
  while (true) {
    std::array<int64_t, 3> announced = {0, 0, 0};
    CADRE_RETURN_IF_ERROR(
        communicators_->world()->AllReduceSum(absl::MakeSpan(announced)));
    if (announced[0] == kDone) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(Exchange({.parameter = announced[0] - 1,
                                    .begin = announced[1],
                                    .end = announced[2]},
                                   {}));
  }
}

absl::Status ParameterGather::Exchange(const Request& request,
                                       absl::Span<float> out) {
  Communicator* const world = communicators_->world();
  const Parameter& parameter = *parameters_->all()[request.parameter];
  const std::vector<Part> parts =
      PartsOf(parameter, request.begin, request.end);
  std::vector<int64_t> where;  // begin, size of each part
  std::vector<float> values;
  for (const Part& part : parts) {
    const int64_t n = part.value.num_elements();
    where.push_back(part.begin);
    where.push_back(n);
    values.resize(values.size() + n);
    CADRE_RETURN_IF_ERROR(
        ReadFloats(exec_, part.value, absl::MakeSpan(values).last(n)));
  }
  // Lengths of everyone's lists, then the lists, then what they describe.
  const int rank = world->rank(), size = world->size();
  std::vector<int64_t> lengths(2 * size, 0);
  lengths[2 * rank] = static_cast<int64_t>(where.size());
  lengths[2 * rank + 1] = static_cast<int64_t>(values.size());
  CADRE_RETURN_IF_ERROR(world->AllReduceSum(absl::MakeSpan(lengths)));
  std::array<std::vector<int64_t>, 2> send, recv;
  for (int kind = 0; kind < 2; ++kind) {
    send[kind].assign(size, 0);
    recv[kind].assign(size, 0);
    send[kind][0] = lengths[2 * rank + kind];
    if (rank != 0) continue;
    for (int r = 0; r < size; ++r) recv[kind][r] = lengths[2 * r + kind];
  }
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  std::vector<int64_t> all_where(total(recv[0]));
  CADRE_RETURN_IF_ERROR(world->AllToAllV(absl::MakeConstSpan(where), send[0],
                                         absl::MakeSpan(all_where), recv[0]));
  std::vector<float> all_values(total(recv[1]));
  CADRE_RETURN_IF_ERROR(world->AllToAllV(absl::MakeConstSpan(values), send[1],
                                         absl::MakeSpan(all_values), recv[1]));
  if (rank != 0) return absl::OkStatus();
  int64_t at = 0;
  for (size_t i = 0; i < all_where.size(); i += 2) {
    std::copy_n(all_values.begin() + at, all_where[i + 1],
                out.begin() + (all_where[i] - request.begin));
    at += all_where[i + 1];
  }
  if (at == static_cast<int64_t>(out.size())) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "gathering elements ", request.begin, " to ", request.end, " of ",
      parameter.name, ": the ranks hold ", at, " of ", out.size()));
}

}  // namespace cadre
