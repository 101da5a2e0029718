#include "plan/expert_placement.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

absl::Status CheckShape(const PlacementShape& shape) {
  if (shape.num_layers < 0 || shape.num_experts < 1 || shape.num_ranks < 1 ||
      shape.slots_per_rank < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a placement needs experts, ranks and slots, not ", shape.num_experts,
        " experts over ", shape.num_ranks, " ranks with ", shape.slots_per_rank,
        " slots each and ", shape.num_layers, " layers"));
  }
  if (shape.num_slots() < shape.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape.num_ranks, " ranks x ", shape.slots_per_rank,
        " expert slots cannot hold ", shape.num_experts,
        " experts; give each rank at least ",
        (shape.num_experts + shape.num_ranks - 1) / shape.num_ranks));
  }
  return absl::OkStatus();
}

double MaxOf(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

double SumOf(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

absl::StatusOr<ExpertPlacement> MakePlacement(
    const PlacementShape& shape,
    const std::vector<std::vector<int32_t>>& slot_to_expert,
    int64_t plan_epoch) {
  CADRE_RETURN_IF_ERROR(CheckShape(shape));
  if (static_cast<int64_t>(slot_to_expert.size()) != shape.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the placement has ", slot_to_expert.size(),
                     " layers and the model ", shape.num_layers));
  }
  ExpertPlacement placement;
  placement.plan_epoch = plan_epoch;
  placement.shape = shape;
  placement.layers.resize(shape.num_layers);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    LayerPlacement& layer = placement.layers[l];
    layer.slot_to_expert = slot_to_expert[l];
    layer.slot_count.assign(shape.num_experts, 0);
    if (static_cast<int64_t>(layer.slot_to_expert.size()) !=
        shape.num_slots()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", l, " of the placement has ", layer.slot_to_expert.size(),
          " slots instead of ", shape.num_ranks, " x ", shape.slots_per_rank));
    }
    for (const int32_t expert : layer.slot_to_expert) {
      if (expert < -1 || expert >= shape.num_experts) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer ", l, " of the placement names expert ", expert,
            ", but the model has ", shape.num_experts, " experts"));
      }
      if (expert >= 0) ++layer.slot_count[expert];
    }
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      if (layer.slot_count[e] == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "expert ", e, " of layer ", l, " of the placement has no slot"));
      }
      placement.max_copies =
          std::max<int64_t>(placement.max_copies, layer.slot_count[e]);
    }
  }
  for (LayerPlacement& layer : placement.layers) {
    layer.expert_to_slots.assign(shape.num_experts * placement.max_copies, -1);
    std::vector<int32_t> filled(shape.num_experts, 0);
    for (int64_t slot = 0; slot < shape.num_slots(); ++slot) {
      const int32_t expert = layer.slot_to_expert[slot];
      if (expert < 0) continue;
      layer.expert_to_slots[expert * placement.max_copies + filled[expert]++] =
          static_cast<int32_t>(slot);
    }
  }
  return placement;
}

absl::StatusOr<ExpertPlacement> PlaceContiguous(const PlacementShape& shape) {
  CADRE_RETURN_IF_ERROR(CheckShape(shape));
  std::vector<int32_t> slots(shape.num_slots(), -1);
  for (int64_t r = 0; r < shape.num_ranks; ++r) {
    const int64_t first = r * shape.num_experts / shape.num_ranks;
    const int64_t last = (r + 1) * shape.num_experts / shape.num_ranks;
    for (int64_t e = first; e < last; ++e) {
      slots[r * shape.slots_per_rank + e - first] = static_cast<int32_t>(e);
    }
  }
  return MakePlacement(
      shape, std::vector<std::vector<int32_t>>(shape.num_layers, slots), 0);
}

std::vector<double> RankLoads(const ExpertPlacement& placement, int64_t layer,
                              const std::vector<double>& load) {
  const LayerPlacement& at = placement.layers[layer];
  CADRE_CHECK(static_cast<int64_t>(load.size()) == placement.shape.num_experts)
      << load.size();
  std::vector<double> ranks(placement.shape.num_ranks, 0.0);
  for (int64_t slot = 0; slot < placement.shape.num_slots(); ++slot) {
    const int32_t expert = at.slot_to_expert[slot];
    if (expert < 0) continue;
    ranks[placement.RankOfSlot(slot)] += load[expert] / at.slot_count[expert];
  }
  return ranks;
}

double LayerBalancedness(const ExpertPlacement& placement, int64_t layer,
                         const std::vector<double>& load) {
  const std::vector<double> ranks = RankLoads(placement, layer, load);
  const double max = MaxOf(ranks);
  return max > 0 ? SumOf(ranks) / ranks.size() / max : 1.0;
}

double Balancedness(const ExpertPlacement& placement,
                    const ExpertLoads& loads) {
  CADRE_CHECK(loads.size() == placement.layers.size()) << loads.size();
  double mean = 0.0, max = 0.0;
  for (size_t l = 0; l < loads.size(); ++l) {
    const std::vector<double> ranks = RankLoads(placement, l, loads[l]);
    mean += SumOf(ranks) / ranks.size();
    max += MaxOf(ranks);
  }
  return max > 0 ? mean / max : 1.0;
}

}  // namespace cadre
