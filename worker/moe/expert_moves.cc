#include "worker/moe/expert_moves.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/replacement.h"
#include "worker/device/transfer.h"
#include "worker/moe/row_exchange.h"

namespace cadre {
namespace {

using Copies = std::vector<std::vector<RowCopy>>;  // by layer

// From the home slot of each expert to its other slots, in slot order.
Copies HomeToCopies(const ExpertPlacement& placement) {
  Copies out(placement.layers.size());
  for (size_t layer = 0; layer < out.size(); ++layer) {
    for (int64_t e = 0; e < placement.shape.num_experts; ++e) {
      const int64_t home = placement.HomeSlot(layer, e);
      for (int64_t i = 1; i < placement.layers[layer].slot_count[e]; ++i) {
        out[layer].push_back({home, placement.SlotOfCopy(layer, e, i)});
      }
    }
  }
  return out;
}

bool Empty(const Copies& copies) {
  for (const auto& layer : copies) {
    if (!layer.empty()) return false;
  }
  return true;
}

absl::Status ZeroRow(const Exec& exec, const Tensor& rows, int64_t row) {
  return SetZero(exec, rows.Rows(row, row + 1));
}

int64_t Digest(const ExpertPlacement& placement) {
  uint64_t h = 0xCBF29CE484222325ULL;
  const auto mix = [&h](int64_t v) {
    h = (h ^ static_cast<uint64_t>(v)) * 0x100000001B3ULL;
  };
  mix(placement.plan_epoch);
  for (const LayerPlacement& layer : placement.layers) {
    for (const int32_t expert : layer.slot_to_expert) mix(expert);
  }
  return static_cast<int64_t>(h >> 1);
}

absl::Status AgreeOnMove(Communicator* group, const ExpertPlacement& from,
                         const ExpertPlacement& to) {
  if (group == nullptr) return absl::OkStatus();
  const int64_t a = Digest(from), b = Digest(to);
  std::array<int64_t, 4> range = {a, -a, b, -b};
  CADRE_RETURN_IF_ERROR(group->AllReduceMax(absl::MakeSpan(range)));
  if (range[0] == -range[1] && range[2] == -range[3]) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "moving experts from plan epoch ", from.plan_epoch, " to ", to.plan_epoch,
      ": the ranks do not hold the same plans; nothing was moved"));
}

}  // namespace

absl::Status SumCopiesAtHome(const Exec& exec, Communicator* group,
                             const ExpertParallel& experts,
                             absl::Span<const ExpertParameter> parameters) {
  Copies back = HomeToCopies(experts.placement);
  if (Empty(back)) return absl::OkStatus();
  for (auto& layer : back) {
    for (RowCopy& copy : layer) std::swap(copy.from_slot, copy.to_slot);
  }
  std::vector<RowTransfer> transfers;
  for (const auto& [p, layer] : parameters) {
    if (!p->grad.present()) continue;
    transfers.push_back({.rows = p->grad, .copies = &back[layer], .add = true});
  }
  CADRE_RETURN_IF_ERROR(Annotate(ExchangeRows(exec, group, transfers),
                                 "summing gradients of copied experts"));
  for (const auto& [p, layer] : parameters) {
    if (!p->grad.present()) continue;
    for (size_t row = 0; row < p->rows.size(); ++row) {
      if (p->rows[row].home) continue;
      CADRE_RETURN_IF_ERROR(ZeroRow(exec, p->grad, static_cast<int64_t>(row)));
    }
  }
  return absl::OkStatus();
}

absl::Status SpreadFromHome(const Exec& exec, Communicator* group,
                            const ExpertParallel& experts,
                            absl::Span<const ExpertParameter> parameters) {
  const Copies copies = HomeToCopies(experts.placement);
  if (Empty(copies)) return absl::OkStatus();
  std::vector<RowTransfer> transfers;
  for (const auto& [p, layer] : parameters) {
    if (!p->trainable) continue;
    transfers.push_back({.rows = p->value, .copies = &copies[layer]});
  }
  return Annotate(ExchangeRows(exec, group, transfers),
                  "updating copies of experts");
}

absl::Status MoveExperts(const Exec& exec, Communicator* group,
                         const ExpertParallel& from, const ExpertPlacement& to,
                         absl::Span<const ExpertTensor> tensors) {
  CADRE_RETURN_IF_ERROR(AgreeOnMove(group, from.placement, to));
  CADRE_ASSIGN_OR_RETURN(
      const MovePlan plan,
      PlanMoves(from.placement, to, {.weights = 1, .state = 1}));
  Copies values(to.layers.size()), states(to.layers.size());
  for (const ExpertMove& move : plan.moves) {
    (move.what == ExpertMove::What::kWeights ? values : states)[move.layer]
        .push_back({move.from_slot, move.to_slot});
  }
  // A layer at a time: staging holds what one layer moves.
  for (size_t layer = 0; layer < to.layers.size(); ++layer) {
    if (values[layer].empty() && states[layer].empty()) continue;
    std::vector<RowTransfer> transfers;
    for (const ExpertTensor& tensor : tensors) {
      if (tensor.layer != static_cast<int>(layer)) continue;
      transfers.push_back(
          {.rows = tensor.rows,
           .copies = &(tensor.home_only ? states : values)[layer]});
    }
    CADRE_RETURN_IF_ERROR(
        Annotate(ExchangeRows(exec, group, transfers),
                 absl::StrCat("moving experts of MoE layer ", layer)));
  }
  for (const ExpertTensor& tensor : tensors) {
    const LayerPlacement& layer = to.layers[tensor.layer];
    for (int64_t row = 0; row < tensor.rows.dim(0); ++row) {
      const int64_t slot = from.first_slot() + row;
      const int32_t expert = layer.slot_to_expert[slot];
      if (expert < 0 ||
          (tensor.home_only && to.HomeSlot(tensor.layer, expert) != slot)) {
        CADRE_RETURN_IF_ERROR(ZeroRow(exec, tensor.rows, row));
      }
    }
  }
  return absl::OkStatus();
}

std::vector<ExpertTensor> ExpertValues(
    absl::Span<const ExpertParameter> parameters) {
  std::vector<ExpertTensor> out;
  for (const auto& [p, layer] : parameters) {
    out.push_back({.layer = layer, .rows = p->value});
  }
  return out;
}

}  // namespace cadre
