// KeepInPlace of expert_placement.h.

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "plan/expert_placement.h"

namespace cadre {
namespace {

using Matrix = std::vector<std::vector<int64_t>>;

// Hungarian method (Kuhn-Munkres with potentials, n^3): the column of each row
// in an assignment of a square matrix with the greatest sum of gains.
std::vector<int64_t> Assign(const Matrix& gain) {
  const int64_t n = static_cast<int64_t>(gain.size());
  // Row 0 and column 0 are the usual sentinels.
  std::vector<int64_t> row_potential(n + 1, 0), column_potential(n + 1, 0);
  std::vector<int64_t> row_of(n + 1, 0), way(n + 1, 0);
  for (int64_t row = 1; row <= n; ++row) {
    row_of[0] = row;
    int64_t column = 0;
    std::vector<int64_t> least(n + 1, std::numeric_limits<int64_t>::max());
    std::vector<bool> used(n + 1, false);
    do {
      used[column] = true;
      const int64_t at = row_of[column];
      int64_t delta = std::numeric_limits<int64_t>::max(), next = 0;
      for (int64_t j = 1; j <= n; ++j) {
        if (used[j]) continue;
        const int64_t cost =
            -gain[at - 1][j - 1] - row_potential[at] - column_potential[j];
        if (cost < least[j]) {
          least[j] = cost;
          way[j] = column;
        }
        if (least[j] < delta) {
          delta = least[j];
          next = j;
        }
      }
      for (int64_t j = 0; j <= n; ++j) {
        if (used[j]) {
          row_potential[row_of[j]] += delta;
          column_potential[j] -= delta;
        } else {
          least[j] -= delta;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    while (column != 0) {
      row_of[column] = row_of[way[column]];
      column = way[column];
    }
  }
  std::vector<int64_t> column_of_row(n);
  for (int64_t j = 1; j <= n; ++j) column_of_row[row_of[j] - 1] = j - 1;
  return column_of_row;
}

// The experts of one rank.
struct RankView {
  const int32_t* slots;
  int64_t num_slots;
};

// Experts that both ranks hold, a copy against a copy; empty slots are none.
int64_t Shared(const RankView& a, const RankView& b,
               std::vector<int32_t>* count) {
  int64_t shared = 0;
  for (int64_t i = 0; i < a.num_slots; ++i) {
    if (a.slots[i] >= 0) ++(*count)[a.slots[i]];
  }
  for (int64_t i = 0; i < b.num_slots; ++i) {
    if (b.slots[i] >= 0 && (*count)[b.slots[i]]-- > 0) ++shared;
  }
  for (const RankView* view : {&a, &b}) {
    for (int64_t i = 0; i < view->num_slots; ++i) {
      if (view->slots[i] >= 0) (*count)[view->slots[i]] = 0;
    }
  }
  return shared;
}

// `wanted` in an order that leaves as many experts of `now` as possible where
// they are.
void Arrange(const RankView& now, const RankView& wanted, int32_t* out) {
  std::vector<bool> taken(wanted.num_slots, false), kept(now.num_slots, false);
  for (int64_t i = 0; i < now.num_slots; ++i) {
    for (int64_t j = 0; j < wanted.num_slots && !kept[i]; ++j) {
      if (taken[j] || wanted.slots[j] != now.slots[i]) continue;
      taken[j] = kept[i] = true;
      out[i] = now.slots[i];
    }
  }
  int64_t j = 0;
  for (int64_t i = 0; i < now.num_slots; ++i) {
    if (kept[i]) continue;
    while (taken[j]) ++j;
    out[i] = wanted.slots[j++];
  }
}

std::vector<int32_t> KeepLayer(const PlacementShape& shape,
                               const std::vector<int32_t>& now,
                               const std::vector<int32_t>& wanted,
                               int64_t num_nodes) {
  const int64_t per_rank = shape.slots_per_rank;
  const int64_t ranks = shape.num_ranks / num_nodes;  // of a node
  const auto view = [per_rank](const std::vector<int32_t>& slots, int64_t r) {
    return RankView{slots.data() + r * per_rank, per_rank};
  };
  std::vector<int32_t> count(shape.num_experts, 0);
  // Best naming of the ranks for each pair of nodes, then of the nodes.
  Matrix node_gain(num_nodes, std::vector<int64_t>(num_nodes, 0));
  std::vector<Matrix> naming(num_nodes, Matrix(num_nodes));
  for (int64_t a = 0; a < num_nodes; ++a) {
    for (int64_t b = 0; b < num_nodes; ++b) {
      Matrix gain(ranks, std::vector<int64_t>(ranks, 0));
      for (int64_t i = 0; i < ranks; ++i) {
        for (int64_t j = 0; j < ranks; ++j) {
          gain[i][j] = Shared(view(now, a * ranks + i),
                              view(wanted, b * ranks + j), &count);
        }
      }
      naming[a][b] = Assign(gain);
      for (int64_t i = 0; i < ranks; ++i) {
        node_gain[a][b] += gain[i][naming[a][b][i]];
      }
    }
  }
  const std::vector<int64_t> node_of = Assign(node_gain);
  std::vector<int32_t> out(now.size());
  for (int64_t a = 0; a < num_nodes; ++a) {
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t from = node_of[a] * ranks + naming[a][node_of[a]][i];
      Arrange(view(now, a * ranks + i), view(wanted, from),
              out.data() + (a * ranks + i) * per_rank);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<ExpertPlacement> KeepInPlace(const ExpertPlacement& current,
                                            const ExpertPlacement& candidate,
                                            const ExpertLoads& loads,
                                            int64_t num_nodes) {
  const PlacementShape& shape = current.shape;
  if (!(shape == candidate.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the new placement has ", candidate.shape.num_layers, " layers, ",
        candidate.shape.num_experts, " experts and ", candidate.shape.num_ranks,
        " x ", candidate.shape.slots_per_rank, " slots, the one in force ",
        shape.num_layers, ", ", shape.num_experts, " and ", shape.num_ranks,
        " x ", shape.slots_per_rank));
  }
  if (num_nodes < 1 || shape.num_ranks % num_nodes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.num_ranks,
                     " expert-parallel ranks do not divide "
                     "over ",
                     num_nodes, " nodes"));
  }
  if (static_cast<int64_t>(loads.size()) != shape.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("loads of ", loads.size(),
                                                   " layers for placements of ",
                                                   shape.num_layers));
  }
  const auto highest = [&loads](const ExpertPlacement& p, int64_t l) {
    const std::vector<double> ranks = RankLoads(p, l, loads[l]);
    return *std::max_element(ranks.begin(), ranks.end());
  };
  std::vector<std::vector<int32_t>> slots(shape.num_layers);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::vector<int32_t>& now = current.layers[l].slot_to_expert;
    slots[l] = highest(candidate, l) < highest(current, l)
                   ? KeepLayer(shape, now, candidate.layers[l].slot_to_expert,
                               num_nodes)
                   : now;
  }
  return MakePlacement(shape, slots, candidate.plan_epoch);
}

}  // namespace cadre
