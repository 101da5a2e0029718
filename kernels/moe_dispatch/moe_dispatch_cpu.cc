#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/check.h"
#include "kernels/moe_dispatch/moe_dispatch.h"

namespace cadre {
namespace {

constexpr int64_t kWordBytes = sizeof(int32_t);

}  // namespace

absl::Status MoeSlotsCpu(const MoeSlotsArgs& args) {
  const int64_t tokens = args.ids.dim(0), k = args.ids.dim(1);
  const int64_t fan = args.destinations.dim(1), spr = args.slots_per_rank;
  const int64_t experts = args.first_copy.dim(0) - 1;
  const int32_t* const first = args.first_copy.data<int32_t>();
  const int32_t* const copies = args.copies.data<int32_t>();
  struct Pair {
    int32_t slot, choice;
  };
  std::vector<Pair> pairs;
  for (int64_t t = 0; t < tokens; ++t) {
    pairs.clear();
    for (int64_t c = 0; c < k; ++c) {
      const int32_t id = args.ids.data<int32_t>()[t * k + c];
      if (id < 0) continue;
      if (id >= experts) {
        return absl::InvalidArgumentError(
            absl::StrCat("moe_dispatch: ids[", t, ", ", c, "] is ", id,
                         ", expected -1 or 0 to ", experts - 1));
      }
      int64_t copy = 0;
      if (args.offsets.present()) {
        const int64_t j = args.row_of.data<int32_t>()[t * k + c] -
                          args.offsets.data<int32_t>()[id];
        copy = (args.ep_rank + j) % (first[id + 1] - first[id]);
      }
      pairs.push_back({copies[first[id] + copy], static_cast<int32_t>(c)});
    }
    std::stable_sort(
        pairs.begin(), pairs.end(),
        [](const Pair& a, const Pair& b) { return a.slot < b.slot; });
    int32_t* const slots = args.slots.data<int32_t>() + t * k;
    int32_t* const ranks = args.ranks.data<int32_t>() + t * k;
    int32_t* const choices = args.choices.data<int32_t>() + t * k;
    int32_t* const to = args.destinations.data<int32_t>() + t * fan;
    std::fill_n(slots, k, -1);
    std::fill_n(ranks, k, -1);
    std::fill_n(choices, k, -1);
    std::fill_n(to, fan, -1);
    int64_t used = 0;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto rank = static_cast<int32_t>(pairs[i].slot / spr);
      const bool last =
          i + 1 == pairs.size() || pairs[i + 1].slot / spr != rank;
      slots[i] = static_cast<int32_t>(pairs[i].slot % spr);
      if (last) slots[i] += kLastPair;
      ranks[i] = rank;
      choices[i] = pairs[i].choice;
      if (last && used < fan) to[used++] = rank;
    }
  }
  return absl::OkStatus();
}

absl::Status MoePackPairsCpu(const MoePackPairsArgs& args) {
  const int64_t n = args.pairs.dim(0), k = args.weights.dim(1);
  const int64_t size = SizeOf(args.weights.dtype());
  const auto* const weights = static_cast<const char*>(args.weights.raw());
  auto* at = static_cast<char*>(args.pairs.raw());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t source = args.pair_source.data<int32_t>()[i];
    const int64_t choice = args.choices.data<int32_t>()[source];
    std::memcpy(at, args.slots.data<int32_t>() + source, kWordBytes);
    std::memcpy(at + kWordBytes, weights + (source / k * k + choice) * size,
                size);
    at += kWordBytes + size;
  }
  return absl::OkStatus();
}

absl::Status MoeUnpackPairsCpu(const MoeUnpackPairsArgs& args) {
  const int64_t n = args.pairs.dim(0), rows = args.slots.dim(0);
  const int64_t width = args.slots.dim(1), size = SizeOf(args.weights.dtype());
  const auto* at = static_cast<const char*>(args.pairs.raw());
  auto* const weights = static_cast<char*>(args.weights.raw());
  std::fill_n(args.slots.data<int32_t>(), rows * width, -1);
  if (rows > 0) std::memset(weights, 0, args.weights.num_bytes());
  int64_t row = 0, used = 0;
  bool fits = true;
  for (int64_t i = 0; i < n && fits; ++i, at += kWordBytes + size) {
    int32_t slot;
    std::memcpy(&slot, at, kWordBytes);
    const bool last = slot >= kLastPair;
    if (last) slot -= kLastPair;
    fits =
        row < rows && used < width && slot >= 0 && slot < args.slots_per_rank;
    if (!fits) break;
    const int64_t place = row * width + used++;
    args.slots.data<int32_t>()[place] = slot;
    std::memcpy(weights + place * size, at + kWordBytes, size);
    args.places.data<int32_t>()[i] = static_cast<int32_t>(place);
    if (last) {
      ++row;
      used = 0;
    }
  }
  if (fits && row == rows && used == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("moe_dispatch: ", n, " pairs do not make up ", rows,
                   " rows of at most ", width, " of ", args.slots_per_rank,
                   " slots; do all ranks use the same placement?"));
}

absl::Status MoeScatterPairsCpu(const MoeScatterPairsArgs& args) {
  const int64_t n = args.values.dim(0), k = args.weights.dim(1);
  return DispatchCpu(args.weights.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t source = args.pair_source.data<int32_t>()[i];
      const int64_t choice = args.choices.data<int32_t>()[source];
      args.weights.data<T>()[source / k * k + choice] =
          args.values.data<T>()[i];
    }
    return absl::OkStatus();
  });
}

}  // namespace cadre
