#include "worker/moe/dispatch_tables.h"

#include <algorithm>
#include <numeric>

namespace cadre {

void ChooseSlots(absl::Span<const int32_t> ids,
                 const ExpertPlacement& placement, int64_t layer, int ep_rank,
                 std::vector<int32_t>* slots) {
  std::vector<int64_t> sent(placement.shape.num_experts, 0);
  slots->resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t expert = ids[i];
    (*slots)[i] = expert < 0
                      ? -1
                      : static_cast<int32_t>(SlotOfRow(
                            placement, layer, expert, ep_rank, sent[expert]++));
  }
}

int64_t SendTables::num_rows() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

void BuildSendTables(absl::Span<const int32_t> slots, int64_t top_k,
                     int64_t num_ranks, int64_t slots_per_rank,
                     SendTables* tables) {
  const int64_t tokens = static_cast<int64_t>(slots.size()) / top_k;
  tables->fan_out = std::min(top_k, num_ranks);
  tables->destinations.assign(tokens * tables->fan_out, -1);
  tables->rows.assign(num_ranks, 0);
  tables->pairs.assign(num_ranks, 0);

  // The pairs of each token by slot, which is by destination, then local slot.
  std::vector<int32_t> order(slots.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t sent = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto begin = order.begin() + t * top_k;
    std::sort(begin, begin + top_k, [&](int32_t a, int32_t b) {
      return slots[a] != slots[b] ? slots[a] < slots[b] : a < b;
    });
    int64_t last = -1, used = 0;
    for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
      const int32_t slot = slots[order[i]];
      if (slot < 0) continue;
      const int64_t rank = slot / slots_per_rank;
      if (rank != last) {
        tables->destinations[t * tables->fan_out + used++] =
            static_cast<int32_t>(rank);
        ++tables->rows[rank];
        last = rank;
      }
      ++tables->pairs[rank];
      ++sent;
    }
  }

  tables->pair_source.resize(sent);
  tables->pair_slot.resize(sent);
  std::vector<int64_t> next(num_ranks, 0);
  std::partial_sum(tables->pairs.begin(), tables->pairs.end() - 1,
                   next.begin() + 1);
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t pair = order[i], slot = slots[pair];
    if (slot < 0) continue;
    const int64_t rank = slot / slots_per_rank;
    const bool last =
        (i + 1) % top_k == 0 || slots[order[i + 1]] / slots_per_rank != rank;
    tables->pair_source[next[rank]] = pair;
    tables->pair_slot[next[rank]] =
        static_cast<int32_t>(slot - rank * slots_per_rank) +
        (last ? SendTables::kLastPair : 0);
    ++next[rank];
  }
}

bool BuildReceiveTables(absl::Span<const int32_t> pair_slot, int64_t num_rows,
                        int64_t width, int64_t slots_per_rank,
                        ReceiveTables* tables) {
  tables->num_rows = num_rows;
  tables->width = width;
  tables->slots.assign(num_rows * width, -1);
  tables->pair_place.resize(pair_slot.size());
  int64_t row = 0, used = 0;
  for (size_t i = 0; i < pair_slot.size(); ++i) {
    const bool last = pair_slot[i] >= SendTables::kLastPair;
    const int32_t slot = pair_slot[i] - (last ? SendTables::kLastPair : 0);
    if (row >= num_rows || used >= width || slot < 0 ||
        slot >= slots_per_rank) {
      return false;
    }
    const int64_t place = row * width + used++;
    tables->slots[place] = slot;
    tables->pair_place[i] = static_cast<int32_t>(place);
    if (last) {
      ++row;
      used = 0;
    }
  }
  return row == num_rows && used == 0;
}

}  // namespace cadre
