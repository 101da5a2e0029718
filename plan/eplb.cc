// Place and KeepInPlace of expert_placement.h.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/expert_placement.h"

namespace cadre {
namespace {

// Items of each bin, in the order in which they were put there.
using Bins = std::vector<std::vector<int64_t>>;

// weights.size() % num_bins == 0.
Bins Pack(const std::vector<double>& weights, int64_t num_bins) {
  const int64_t num_items = static_cast<int64_t>(weights.size());
  const int64_t per_bin = num_items / num_bins;
  Bins bins(num_bins);
  if (per_bin == 1) {
    for (int64_t i = 0; i < num_items; ++i) bins[i] = {i};
    return bins;
  }
  std::vector<int64_t> order(num_items);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(),
      [&weights](int64_t a, int64_t b) { return weights[a] > weights[b]; });
  std::vector<double> filled(num_bins, 0.0);
  for (const int64_t item : order) {
    int64_t best = -1;
    for (int64_t b = 0; b < num_bins; ++b) {
      if (static_cast<int64_t>(bins[b].size()) == per_bin) continue;
      if (best < 0 || filled[b] < filled[best]) best = b;
    }
    bins[best].push_back(item);
    filled[best] += weights[item];
  }
  return bins;
}

// Item of each slot: first every item once, then the copies; -1 where spare
// slots stay empty. `copies` counts per item.
std::vector<int64_t> Replicate(const std::vector<double>& load,
                               int64_t num_slots, bool replicate,
                               std::vector<int64_t>* copies) {
  const int64_t num_items = static_cast<int64_t>(load.size());
  copies->assign(num_items, 1);
  std::vector<int64_t> items(num_slots, -1);
  std::iota(items.begin(), items.begin() + num_items, 0);
  for (int64_t slot = num_items; replicate && slot < num_slots; ++slot) {
    int64_t best = 0;
    for (int64_t i = 1; i < num_items; ++i) {
      if (load[i] / (*copies)[i] > load[best] / (*copies)[best]) best = i;
    }
    items[slot] = best;
    ++(*copies)[best];
  }
  return items;
}

std::vector<int32_t> PlaceLayer(const std::vector<double>& load,
                                const PlaceOptions& options, int64_t num_groups,
                                int64_t num_nodes) {
  const PlacementShape& shape = options.shape;
  const int64_t group_size = shape.num_experts / num_groups;
  const int64_t ranks_per_node = shape.num_ranks / num_nodes;
  std::vector<double> group_load(num_groups, 0.0);
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    group_load[e / group_size] += load[e];
  }
  std::vector<int32_t> slots(shape.num_slots(), -1);
  const Bins nodes = Pack(group_load, num_nodes);
  for (int64_t node = 0; node < num_nodes; ++node) {
    std::vector<int64_t> experts;  // of the node, groups in packed order
    std::vector<double> node_load;
    for (const int64_t group : nodes[node]) {
      for (int64_t i = 0; i < group_size; ++i) {
        experts.push_back(group * group_size + i);
        node_load.push_back(load[experts.back()]);
      }
    }
    std::vector<int64_t> copies;
    const std::vector<int64_t> items =
        Replicate(node_load, ranks_per_node * shape.slots_per_rank,
                  options.replicate, &copies);
    std::vector<double> slot_load;
    for (const int64_t item : items) {
      slot_load.push_back(item < 0 ? 0.0 : node_load[item] / copies[item]);
    }
    const Bins ranks = Pack(slot_load, ranks_per_node);
    for (int64_t r = 0; r < ranks_per_node; ++r) {
      int64_t slot = (node * ranks_per_node + r) * shape.slots_per_rank;
      for (const int64_t index : ranks[r]) {
        const int64_t item = items[index];
        slots[slot++] = item < 0 ? -1 : static_cast<int32_t>(experts[item]);
      }
    }
  }
  return slots;
}

absl::Status CheckLoads(const ExpertLoads& loads, const PlacementShape& shape) {
  if (static_cast<int64_t>(loads.size()) != shape.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("loads of ", loads.size(), " layers for a placement of ",
                     shape.num_layers));
  }
  for (size_t l = 0; l < loads.size(); ++l) {
    if (static_cast<int64_t>(loads[l].size()) != shape.num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", l, " has loads of ", loads[l].size(),
                       " experts instead of ", shape.num_experts));
    }
    for (const double load : loads[l]) {
      if (!std::isfinite(load) || load < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer ", l, " has a load of ", load, "; loads count rows"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertPlacement> Place(const ExpertLoads& loads,
                                      const PlaceOptions& options) {
  const PlacementShape& shape = options.shape;
  if (options.num_groups < 1 || shape.num_experts % options.num_groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.num_experts, " experts do not divide into ",
                     options.num_groups, " groups"));
  }
  if (options.num_nodes < 1 || shape.num_ranks % options.num_nodes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.num_ranks,
                     " expert-parallel ranks do not divide "
                     "over ",
                     options.num_nodes, " nodes"));
  }
  CADRE_RETURN_IF_ERROR(CheckLoads(loads, shape));
  // The shape is judged before any of it is used as a divisor.
  CADRE_RETURN_IF_ERROR(PlaceContiguous(shape).status());
  const bool hierarchical = options.num_groups % options.num_nodes == 0;
  std::vector<std::vector<int32_t>> slots;
  for (const std::vector<double>& load : loads) {
    slots.push_back(PlaceLayer(load, options,
                               hierarchical ? options.num_groups : 1,
                               hierarchical ? options.num_nodes : 1));
  }
  return MakePlacement(shape, slots, options.plan_epoch);
}

}  // namespace cadre
