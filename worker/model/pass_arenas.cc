#include "worker/model/pass_arenas.h"

#include <algorithm>
#include <vector>

namespace cadre {
namespace {

// Of an arena, beyond what the plan says.
constexpr int64_t kArenaSlack = int64_t{64} << 10;

}  // namespace

PassRequest PassRequestFor(const ModelSpec& spec, const ModelOptions& options,
                           const ExpertRuntime* experts, int64_t tokens) {
  PassRequest request{
      .model = &spec,
      .lora = options.lora ? &*options.lora : nullptr,
      .tokens = tokens,
      .element_bytes = SizeOf(options.dtype),
      .replayed_blocks = options.replayed_blocks,
      .has_capacity = options.moe.overflow != OverflowPolicy::kDropless};
  if (experts != nullptr) {
    const ExpertParallel& where = experts->experts;
    request.dispatch = {.ranks = where.size(),
                        .slots_per_rank = where.slots_per_rank(),
                        .has_copies = where.size() * where.slots_per_rank() >
                                      where.placement.shape.num_experts,
                        .chunks = experts->chunks};
  }
  return request;
}

void PassArenas::Reset() {
  kept_.Reset();
  saved_.Reset();
  scratch_.Reset();
}

void PassArenas::Reserve(PassRequest request, int64_t top_k) {
  if (exec_.backend != Backend::kCpu || request.tokens <= reserved_tokens_) {
    return;
  }
  reserved_tokens_ = request.tokens;
  request.rows = PlannedRows(request.tokens, top_k, request.dispatch.ranks,
                             kUnmeasuredImbalance);
  const PassMemory memory = MeasurePass(request);
  // The plan may be a little low.
  const auto reserve = [](int64_t bytes, Arena* arena) {
    arena->Reserve(bytes + bytes / 32 + kArenaSlack);
  };
  reserve(memory.kept, &kept_);
  reserve(memory.saved, &saved_);
  reserve(memory.temporary, &scratch_);
}

void PassArenas::Expect(PassRequest request, const ForwardResult& result) {
  // A GPU's kernels ask for workspaces that the plan does not follow.
  if (exec_.backend != Backend::kCpu) return;
  std::vector<ExpertRows> rows;
  for (size_t layer = 0; layer < result.moe_counts.size(); ++layer) {
    const MoeLayerCounts& counts = result.moe_counts[layer];
    rows.push_back({.pairs = counts.routed - counts.dropped});
    if (layer < result.traffic.computed_pairs.size()) {
      rows.back() = {.pairs = result.traffic.computed_pairs[layer],
                     .sent = result.traffic.sent_rows[layer],
                     .received = result.traffic.received_rows[layer]};
    }
  }
  const bool longer = request.tokens > most_tokens_;
  most_tokens_ = std::max(request.tokens, most_tokens_);
  if (!seen_rows_.Add(rows) && !longer) return;
  request.tokens = most_tokens_;
  expected_bytes_ = seen_rows_.Measure(request).total();
}

absl::Status PassArenas::Explain(const absl::Status& status) {
  for (Arena* arena : {&kept_, &saved_, &scratch_}) {
    const absl::Status memory = arena->TakeStatus();
    if (!memory.ok()) return memory;
  }
  return status;
}

ArenaStats PassArenas::stats() const {
  ArenaStats stats;
  for (const Arena* arena : {&kept_, &saved_, &scratch_}) {
    stats.allocations += arena->num_allocations();
    stats.peak_bytes += arena->peak_bytes();
    stats.recent_peak_bytes += arena->recent_peak_bytes();
    stats.reserved_bytes += arena->reserved_bytes();
  }
  stats.scratch_peak_bytes = scratch_.peak_bytes();
  stats.recent_scratch_peak_bytes = scratch_.recent_peak_bytes();
  stats.expected_bytes = expected_bytes_;
  return stats;
}

void PassArenas::RestartRecentPeaks() {
  for (Arena* arena : {&kept_, &saved_, &scratch_}) arena->RestartRecentPeak();
}

}  // namespace cadre
