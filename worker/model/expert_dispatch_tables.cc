// The tables of a dispatch: which slots pairs go to, which rows each rank gets,
// and how many come from whom.
#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "kernels/moe_dispatch/moe_dispatch.h"
#include "kernels/moe_permute/moe_permute.h"
#include "worker/device/transfer.h"
#include "worker/model/expert_dispatch.h"

namespace cadre {
namespace {

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

absl::Status ExpertDispatch::PlaceSlots(const LayerContext& ctx) {
  if (placed_as_ == ctx.experts->placements) return absl::OkStatus();
  const ExpertPlacement& placement = ctx.experts->experts.placement;
  const std::vector<int32_t>& count = placement.layers[layer_].slot_count;
  const int64_t experts = placement.shape.num_experts;
  std::vector<int32_t> tables(experts + 1, 0);
  for (int64_t e = 0; e < experts; ++e) tables[e + 1] = tables[e] + count[e];
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < count[e]; ++i) {
      tables.push_back(
          static_cast<int32_t>(placement.SlotOfCopy(layer_, e, i)));
    }
  }
  const int64_t bytes = std::ssize(tables) * SizeOf(DType::kI32);
  if (placement_.num_bytes() != bytes) {
    placement_ = Buffer();
    CADRE_ASSIGN_OR_RETURN(
        placement_, Buffer::Create(ctx.exec, bytes, "placement of experts"));
  }
  placed_ = placement_.View(DType::kI32, {std::ssize(tables)});
  CADRE_RETURN_IF_ERROR(CopyToDevice(ctx.exec, tables.data(), placed_));
  placed_as_ = ctx.experts->placements;
  return absl::OkStatus();
}

absl::Status ExpertDispatch::MakeTables(const LayerContext& ctx,
                                        const Tensor& ids) {
  CADRE_RETURN_IF_ERROR(PlaceSlots(ctx));
  const ExpertRuntime& runtime = *ctx.experts;
  const ExpertParallel& where = runtime.experts;
  const int64_t T = ids.dim(0), k = ids.dim(1), n = runtime.chunks;
  const int64_t ranks = where.size(), fan = std::min(k, ranks);
  const int64_t experts = where.placement.shape.num_experts;
  const auto scratch = [&](std::initializer_list<int64_t> dims) {
    return ctx.scratch->Allocate(DType::kI32, dims);
  };
  const auto saved = [&](std::initializer_list<int64_t> dims) {
    return ctx.saved->Allocate(DType::kI32, dims);
  };
  slots_ = scratch({T, k});
  choices_ = saved({T, k});
  MoeSlotsArgs args{.ids = ids,
                    .first_copy = placed_.Rows(0, experts + 1),
                    .copies = placed_.Rows(experts + 1, placed_.dim(0)),
                    .ep_rank = where.rank,
                    .slots_per_rank = where.slots_per_rank(),
                    .slots = slots_,
                    .ranks = scratch({T, k}),
                    .choices = choices_,
                    .destinations = scratch({T, fan})};
  if (args.copies.dim(0) > experts) {
    args.offsets = scratch({experts + 1});
    args.row_of = scratch({T, k});
    CADRE_RETURN_IF_ERROR(MoePermute(ctx.exec, {.ids = ids,
                                                .offsets = args.offsets,
                                                .row_source = scratch({T * k}),
                                                .row_of = args.row_of}));
  }
  CADRE_RETURN_IF_ERROR(MoeSlots(ctx.exec, args));
  while (std::ssize(chunks_) < n) {
    chunks_.push_back({.experts = RoutedExperts(experts_)});
  }
  // Of each chunk, where the rows and the pairs of each rank begin.
  const Tensor offsets = scratch({n * 2, ranks + 1});
  for (int64_t c = 0; c < n; ++c) {
    Chunk& chunk = chunks_[c];
    chunk.begin = T * c / n;
    chunk.end = T * (c + 1) / n;
    const int64_t tokens = chunk.end - chunk.begin;
    chunk.row_source = saved({tokens * fan});
    chunk.row_of = saved({tokens, fan});
    chunk.pair_source = saved({tokens * k});
    const auto begins = [&](int64_t i) {
      return offsets.Rows(2 * c + i, 2 * c + i + 1).Reshape({ranks + 1});
    };
    CADRE_RETURN_IF_ERROR(MoePermute(
        ctx.exec, {.ids = args.destinations.Rows(chunk.begin, chunk.end),
                   .offsets = begins(0),
                   .row_source = chunk.row_source,
                   .row_of = chunk.row_of}));
    CADRE_RETURN_IF_ERROR(
        MoePermute(ctx.exec, {.ids = args.ranks.Rows(chunk.begin, chunk.end),
                              .offsets = begins(1),
                              .row_source = chunk.pair_source,
                              .row_of = scratch({tokens, k})}));
  }
  return ctx.replay ? absl::OkStatus() : ReadCounts(ctx, offsets);
}

absl::Status ExpertDispatch::ReadCounts(const LayerContext& ctx,
                                        const Tensor& offsets) {
  const int64_t n = ctx.experts->chunks, ranks = ctx.experts->experts.size();
  std::vector<int32_t> begins(offsets.num_elements());
  CADRE_RETURN_IF_ERROR(CopyToHost(ctx.exec, offsets, begins.data()));
  send_counts_.assign(ranks * n * 2, 0);
  recv_counts_.assign(ranks * n * 2, 0);
  for (int64_t c = 0; c < n; ++c) {
    Counts& sent = chunks_[c].sent;
    sent.rows.resize(ranks);
    sent.pairs.resize(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int32_t* const rows = &begins[2 * c * (ranks + 1) + rank];
      const int32_t* const pairs = rows + ranks + 1;
      sent.rows[rank] = rows[1] - rows[0];
      sent.pairs[rank] = pairs[1] - pairs[0];
      send_counts_[(rank * n + c) * 2] = sent.rows[rank];
      send_counts_[(rank * n + c) * 2 + 1] = sent.pairs[rank];
    }
    sent.num_rows = Sum(sent.rows);
    sent.num_pairs = Sum(sent.pairs);
  }
  return absl::OkStatus();
}

absl::Status ExpertDispatch::ExchangeCounts(const LayerContext& ctx) {
  Communicator* const group = ctx.experts->group;
  if (group == nullptr) {
    recv_counts_ = send_counts_;
    return absl::OkStatus();
  }
  const std::vector<int64_t> parts(group->size(), ctx.experts->chunks * 2);
  return group->AllToAllV(absl::MakeConstSpan(send_counts_), parts,
                          absl::MakeSpan(recv_counts_), parts);
}

void ExpertDispatch::TakeReceivedCounts(const LayerContext& ctx) {
  const int64_t n = ctx.experts->chunks, ranks = ctx.experts->experts.size();
  for (int64_t c = 0; c < n; ++c) {
    Counts& received = chunks_[c].received;
    received.rows.resize(ranks);
    received.pairs.resize(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      received.rows[rank] = recv_counts_[(rank * n + c) * 2];
      received.pairs[rank] = recv_counts_[(rank * n + c) * 2 + 1];
    }
    received.num_rows = Sum(received.rows);
    received.num_pairs = Sum(received.pairs);
  }
}

}  // namespace cadre
