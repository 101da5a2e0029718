#include "plan/layout.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

std::vector<int> Divisors(int n) {
  std::vector<int> out;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

MemoryRequest RequestFor(const LayoutRequest& in, const ModelCounts& counts,
                         const MeshSpec& mesh) {
  return {.model = in.model,
          .lora = in.lora,
          .counts = &counts,
          .mesh = mesh,
          .spare_slots_per_rank = in.spare_slots_per_rank,
          .tokens = in.tokens,
          .longest_document = in.longest_document,
          // One rank gets all rows: nothing to be unbalanced.
          .imbalance = mesh.expert_parallel_size > 1 ? in.imbalance : 1.0,
          .headroom = in.headroom,
          .constants = in.constants};
}

// Lower is better; see the header.
std::tuple<int, int, int, int> Cost(const LayoutRequest& in,
                                    const Layout& layout) {
  const auto outside = [&in](int size) {
    return in.domain_size > 0 && size > in.domain_size ? 1 : 0;
  };
  const int blocks = static_cast<int>(in.model->blocks.size());
  return {outside(layout.mesh.expert_parallel_size) +
              outside(layout.mesh.fsdp_shard_group_size),
          (4 * layout.replayed_blocks + blocks - 1) / blocks,
          layout.mesh.expert_parallel_size, layout.mesh.fsdp_shard_group_size};
}

absl::StatusOr<Layout> Evaluate(const LayoutRequest& in,
                                const ModelCounts& counts,
                                const MeshSpec& mesh) {
  Layout out;
  out.mesh = mesh;
  MemoryRequest request = RequestFor(in, counts, mesh);
  if (in.replayed_blocks.has_value()) {
    out.replayed_blocks = std::min(*in.replayed_blocks,
                                   static_cast<int>(in.model->blocks.size()));
  } else {
    CADRE_ASSIGN_OR_RETURN(out.replayed_blocks,
                           ChooseReplayedBlocks(request, in.rank_bytes));
  }
  out.recompute = RecomputeName(out.replayed_blocks,
                                static_cast<int>(in.model->blocks.size()));
  request.replayed_blocks = out.replayed_blocks;
  CADRE_ASSIGN_OR_RETURN(out.budget, BudgetMemory(request));
  const int64_t experts = counts.num_experts;
  if (experts > 0) {
    // Where the ranks do not divide the experts, the last slots stay empty.
    out.slots_per_rank =
        (experts + mesh.expert_parallel_size - 1) / mesh.expert_parallel_size +
        in.spare_slots_per_rank;
  }
  return out;
}

void Explain(const LayoutRequest& in, bool fits, Layout* layout) {
  const std::string room = absl::StrCat(
      fits ? "the cheapest that fits " : "the least memory; nothing fits ",
      HumanBytes(in.rank_bytes), in.rank_bytes_assumed ? " (assumed)" : "");
  if (!in.fsdp_shard_group_size.has_value()) {
    layout->reasons.push_back(absl::StrCat("fsdp_shard_group_size ",
                                           layout->mesh.fsdp_shard_group_size,
                                           ": ", room));
  }
  if (!in.expert_parallel_size.has_value() && layout->slots_per_rank > 0) {
    layout->reasons.push_back(absl::StrCat("expert_parallel_size ",
                                           layout->mesh.expert_parallel_size,
                                           ": ", room));
  }
  if (!in.replayed_blocks.has_value()) {
    layout->reasons.push_back(absl::StrCat(
        "recompute ", layout->recompute, " (", layout->replayed_blocks, " of ",
        in.model->blocks.size(), " blocks are replayed): ", room));
  }
}

// Of equal degrees of cost the smaller ones come first.
absl::StatusOr<std::vector<Layout>> EveryLayout(const LayoutRequest& request) {
  CADRE_CHECK(request.model != nullptr);
  const ModelCounts counts = CountModel(*request.model, request.lora);
  const int64_t experts = counts.num_experts;
  std::vector<int> shard_sizes, expert_sizes;
  if (request.fsdp_shard_group_size.has_value()) {
    shard_sizes = {*request.fsdp_shard_group_size};
  } else {
    shard_sizes = Divisors(request.world_size);
  }
  if (request.expert_parallel_size.has_value()) {
    expert_sizes = {*request.expert_parallel_size};
  } else {
    for (const int size : Divisors(request.world_size)) {
      if (size == 1 || (experts > 0 && experts % size == 0)) {
        expert_sizes.push_back(size);
      }
    }
  }
  std::vector<Layout> all;
  for (const int P : expert_sizes) {
    for (const int S : shard_sizes) {
      CADRE_ASSIGN_OR_RETURN(Layout layout,
                             Evaluate(request, counts,
                                      {.world_size = request.world_size,
                                       .fsdp_shard_group_size = S,
                                       .expert_parallel_size = P}));
      all.push_back(std::move(layout));
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<std::vector<Layout>> ListLayouts(const LayoutRequest& request) {
  CADRE_ASSIGN_OR_RETURN(std::vector<Layout> all, EveryLayout(request));
  std::stable_sort(all.begin(), all.end(),
                   [&request](const Layout& a, const Layout& b) {
                     const bool a_fits = a.budget.total <= request.rank_bytes;
                     const bool b_fits = b.budget.total <= request.rank_bytes;
                     if (a_fits != b_fits) return a_fits;
                     return a_fits ? Cost(request, a) < Cost(request, b)
                                   : a.budget.total < b.budget.total;
                   });
  return all;
}

absl::StatusOr<Layout> ChooseLayout(const LayoutRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Layout> all, EveryLayout(request));
  std::optional<Layout> best, smallest;
  for (const Layout& layout : all) {
    // Strictly less: of equal ones the smaller degrees, tried first.
    if (!smallest.has_value() || layout.budget.total < smallest->budget.total) {
      smallest = layout;
    }
    if (layout.budget.total > request.rank_bytes) continue;
    if (!best.has_value() || Cost(request, layout) < Cost(request, *best)) {
      best = layout;
    }
  }
  if (!smallest.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no layout for ", request.world_size, " workers"));
  }
  const bool fits = best.has_value();
  if (!fits &&
      (request.rank_bytes_assumed || request.least_when_nothing_fits)) {
    best = smallest;
  }
  if (!best.has_value()) {
    absl::Status status = CheckFits(smallest->budget, request.rank_bytes);
    return absl::Status(
        status.code(),
        absl::StrCat("even with fsdp_shard_group_size ",
                     smallest->mesh.fsdp_shard_group_size,
                     " and expert_parallel_size ",
                     smallest->mesh.expert_parallel_size, " (recompute ",
                     smallest->recompute, ") ", status.message()));
  }
  Explain(request, fits, &*best);
  return *std::move(best);
}

}  // namespace cadre
