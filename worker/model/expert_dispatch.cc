#include "worker/model/expert_dispatch.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/moe_dispatch/moe_dispatch.h"
#include "kernels/moe_permute/moe_permute.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

constexpr int64_t kWordBytes = sizeof(float);  // of what travels

std::vector<int64_t> Scaled(const std::vector<int64_t>& counts,
                            int64_t factor) {
  std::vector<int64_t> out = counts;
  for (int64_t& n : out) n *= factor;
  return out;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Words of an item of `width` numbers.
int64_t Words(const Tensor& like, int64_t width) {
  return width * SizeOf(like.dtype()) / kWordBytes;
}

// Moves items of `words` words; counts are items by rank.
absl::Status Exchange(const Exec& exec, Communicator* group, const Tensor& send,
                      const std::vector<int64_t>& send_counts,
                      const Tensor& recv,
                      const std::vector<int64_t>& recv_counts, int64_t words) {
  if (group == nullptr) return CopyOnDevice(exec, send, recv);
  const auto view = [](const Tensor& t) {
    return absl::Span<float>(static_cast<float*>(t.raw()),
                             t.num_bytes() / kWordBytes);
  };
  return group->AllToAllV(view(send), Scaled(send_counts, words), view(recv),
                          Scaled(recv_counts, words));
}

// A collective that waits for what the compute stream was given so far.
absl::StatusOr<ExchangeQueue::Ticket> Launch(
    ExpertRuntime* runtime, ExchangeKind kind,
    std::function<absl::Status()> collective) {
  if (runtime->side != nullptr) CADRE_RETURN_IF_ERROR(runtime->side->Follow());
  return runtime->queue.Launch(std::move(collective), kind);
}

// Adds the time until it goes out of scope.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds)
      : seconds_(seconds), begin_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    *seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_)
            .count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* const seconds_;
  const std::chrono::steady_clock::time_point begin_;
};

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

// The rows and pairs that a chunk sends.
absl::Status ExpertDispatch::Pack(const LayerContext& ctx, const Tensor& in,
                                  const Tensor& weights, Chunk* chunk) {
  chunk->out_rows = ctx.Scratch({chunk->sent.num_rows, in.dim(1)});
  CADRE_RETURN_IF_ERROR(
      MoeGather(ctx.exec, {.x = in.Rows(chunk->begin, chunk->end),
                           .row_source = chunk->row_source,
                           .top_k = chunk->row_of.dim(1),
                           .rows = chunk->out_rows}));
  chunk->out_pairs = ctx.scratch->Allocate(
      DType::kI32, {chunk->sent.num_pairs, 1 + Words(weights, 1)});
  return MoePackPairs(ctx.exec,
                      {.pair_source = chunk->pair_source,
                       .slots = slots_.Rows(chunk->begin, chunk->end),
                       .choices = choices_.Rows(chunk->begin, chunk->end),
                       .weights = weights.Rows(chunk->begin, chunk->end),
                       .pairs = chunk->out_pairs});
}

// Slots and weights of the rows received.
absl::Status ExpertDispatch::Unpack(const LayerContext& ctx, int64_t top_k,
                                    Chunk* chunk) {
  const int64_t spr = ctx.experts->experts.slots_per_rank();
  const int64_t rows = chunk->received.num_rows;
  const int64_t pairs = chunk->received.num_pairs;
  const int64_t width = std::min(top_k, spr);
  chunk->slots = ctx.saved->Allocate(DType::kI32, {rows, width});
  chunk->weights = ctx.SavedParam({rows, width});
  chunk->places = ctx.saved->Allocate(DType::kI32, {pairs});
  return Annotate(
      MoeUnpackPairs(ctx.exec, {.pairs = chunk->in_pairs,
                                .slots_per_rank = spr,
                                .slots = chunk->slots,
                                .weights = chunk->weights,
                                .places = chunk->places,
                                .workspace = ctx.scratch->Allocate(
                                    DType::kI32, {MoeUnpackWorkspace(pairs)})}),
      absl::StrCat("dispatch to MoE layer ", layer_));
}

void ExpertDispatch::CountTraffic(const LayerContext& ctx, int64_t width,
                                  bool combines) {
  ExpertTraffic& traffic = ctx.experts->traffic;
  const int me = ctx.experts->experts.rank;
  const int64_t row = width * SizeOf(ctx.dtype), p = SizeOf(ctx.param_dtype);
  for (int64_t c = 0; c < ctx.experts->chunks; ++c) {
    const Counts &sent = chunks_[c].sent, &received = chunks_[c].received;
    const int64_t rows = sent.num_rows - sent.rows[me];
    const int64_t pairs = sent.num_pairs - sent.pairs[me];
    traffic.dispatch_bytes += rows * row + pairs * (kWordBytes + p);
    if (combines) {
      traffic.combine_bytes += (received.num_rows - received.rows[me]) * row;
    }
    if (ctx.replay) continue;
    traffic.rows += rows;
    traffic.pairs += pairs;
    if (std::ssize(traffic.computed_pairs) <= layer_) {
      traffic.computed_pairs.resize(layer_ + 1, 0);
      traffic.sent_rows.resize(layer_ + 1, 0);
      traffic.received_rows.resize(layer_ + 1, 0);
    }
    traffic.computed_pairs[layer_] += received.num_pairs;
    traffic.sent_rows[layer_] += sent.num_rows;
    traffic.received_rows[layer_] += received.num_rows;
  }
  if (ctx.replay) return;
  traffic.count_bytes += (ctx.experts->experts.size() - 1) *
                         ctx.experts->chunks * 2 *
                         static_cast<int64_t>(sizeof(int64_t));
}

absl::Status ExpertDispatch::Forward(const LayerContext& ctx, const Tensor& in,
                                     const Tensor& ids, const Tensor& weights,
                                     const Tensor& out, const Filler& filler) {
  const int64_t width = in.dim(1);
  if (width * SizeOf(in.dtype()) % kWordBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dispatching rows of ", in.DebugString(),
                     ": a row must be whole 4-byte words"));
  }
  PhaseScope phase(ctx.phases, Phase::kDispatch);
  ExpertRuntime& runtime = *ctx.experts;
  const ArenaScope memory(ctx.scratch);
  const ExchangeScope scope(&runtime.queue);
  CADRE_RETURN_IF_ERROR(MakeTables(ctx, ids));
  const absl::Span<Chunk> chunks(chunks_.data(), runtime.chunks);
  // Host memory: it waits for nothing on the device.
  ExchangeQueue::Ticket counts = 0;
  if (!ctx.replay) {
    counts = runtime.queue.Launch([this, &ctx] { return ExchangeCounts(ctx); },
                                  ExchangeKind::kDispatch);
  }
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(Pack(ctx, in, weights, &chunk));
  }
  if (!ctx.replay) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(counts));
    TakeReceivedCounts(ctx);
  }

  const int64_t words = 1 + Words(weights, 1), row_words = Words(in, width);
  for (Chunk& chunk : chunks) {
    chunk.in_rows = ctx.Scratch({chunk.received.num_rows, width});
    chunk.in_pairs =
        ctx.scratch->Allocate(DType::kI32, {chunk.received.num_pairs, words});
    CADRE_RETURN_IF_ERROR(ctx.scratch->status());
    CADRE_ASSIGN_OR_RETURN(
        chunk.ticket,
        Launch(&runtime, ExchangeKind::kDispatch,
               [&ctx, &chunk, &runtime, row_words, words] {
                 CADRE_RETURN_IF_ERROR(Exchange(
                     ctx.exec, runtime.group, chunk.out_rows, chunk.sent.rows,
                     chunk.in_rows, chunk.received.rows, row_words));
                 return Exchange(ctx.exec, runtime.group, chunk.out_pairs,
                                 chunk.sent.pairs, chunk.in_pairs,
                                 chunk.received.pairs, words);
               }));
  }
  const bool combines = out.present();
  CountTraffic(ctx, width, combines);
  CADRE_RETURN_IF_ERROR(filler());
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(Unpack(ctx, ids.dim(1), &chunk));
    Tensor computed;
    if (combines) computed = ctx.Scratch({chunk.in_rows.dim(0), width});
    {
      const Stopwatch watch(&runtime.traffic.expert_seconds);
      CADRE_RETURN_IF_ERROR(
          chunk.experts.Forward(ctx, chunk.in_rows, chunk.slots, chunk.weights,
                                computed, chunk.received.num_pairs));
    }
    CADRE_RETURN_IF_ERROR(ctx.scratch->status());
    if (!combines) continue;
    // What came back lies where the rows lay that were sent.
    CADRE_ASSIGN_OR_RETURN(
        chunk.ticket, Launch(&runtime, ExchangeKind::kCombine,
                             [&ctx, &chunk, &runtime, computed, row_words] {
                               return Exchange(ctx.exec, runtime.group,
                                               computed, chunk.received.rows,
                                               chunk.out_rows, chunk.sent.rows,
                                               row_words);
                             }));
  }
  if (!combines) return absl::OkStatus();
  PhaseScope combine(ctx.phases, Phase::kCombine);
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(
        MoeCombine(ctx.exec, {.rows = chunk.out_rows,
                              .row_of = chunk.row_of,
                              .y = out.Rows(chunk.begin, chunk.end)}));
  }
  return absl::OkStatus();
}

absl::Status ExpertDispatch::Backward(const LayerContext& ctx,
                                      const Tensor& d_out,
                                      const Tensor& d_weights,
                                      const Tensor& d_in, bool accumulate,
                                      const Filler& filler) {
  PhaseScope phase(ctx.phases, Phase::kCombine);
  ExpertRuntime& runtime = *ctx.experts;
  const ArenaScope memory(ctx.scratch);
  const ExchangeScope scope(&runtime.queue);
  const absl::Span<Chunk> chunks(chunks_.data(), runtime.chunks);
  const int64_t width = d_out.dim(1);
  const int64_t row_words = Words(d_out, width), p_words = Words(d_weights, 1);
  ExpertTraffic& traffic = runtime.traffic;
  const int me = runtime.experts.rank;
  for (Chunk& chunk : chunks) {
    const Counts &sent = chunk.sent, &received = chunk.received;
    chunk.out_rows = ctx.Scratch({sent.num_rows, width});
    chunk.in_rows = ctx.Scratch({received.num_rows, width});
    CADRE_RETURN_IF_ERROR(ctx.scratch->status());
    CADRE_RETURN_IF_ERROR(
        MoeGather(ctx.exec, {.x = d_out.Rows(chunk.begin, chunk.end),
                             .row_source = chunk.row_source,
                             .top_k = chunk.row_of.dim(1),
                             .rows = chunk.out_rows}));
    CADRE_ASSIGN_OR_RETURN(
        chunk.ticket, Launch(&runtime, ExchangeKind::kDispatch,
                             [&ctx, &chunk, &runtime, row_words] {
                               return Exchange(ctx.exec, runtime.group,
                                               chunk.out_rows, chunk.sent.rows,
                                               chunk.in_rows,
                                               chunk.received.rows, row_words);
                             }));
    traffic.backward_dispatch_bytes +=
        (sent.num_rows - sent.rows[me]) * row_words * kWordBytes;
    traffic.backward_combine_bytes +=
        (received.num_rows - received.rows[me]) * row_words * kWordBytes +
        (received.num_pairs - received.pairs[me]) * p_words * kWordBytes;
  }
  CADRE_RETURN_IF_ERROR(filler());
  for (Chunk& chunk : chunks) {
    const int64_t rows = chunk.received.num_rows;
    const Tensor d_rows = ctx.Scratch({rows, width});
    const Tensor d_p = ctx.ScratchParam({rows, chunk.weights.dim(1)});
    chunk.in_pairs = ctx.ScratchParam({chunk.received.num_pairs, 1});
    chunk.out_pairs = ctx.ScratchParam({chunk.sent.num_pairs, 1});
    CADRE_RETURN_IF_ERROR(ctx.scratch->status());
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    {
      const Stopwatch watch(&runtime.traffic.expert_seconds);
      CADRE_RETURN_IF_ERROR(chunk.experts.Backward(
          ctx, chunk.in_rows, d_p, d_rows, /*accumulate=*/false));
    }
    CADRE_RETURN_IF_ERROR(
        MoeGather(ctx.exec, {.x = d_p.Reshape({d_p.num_elements(), 1}),
                             .row_source = chunk.places,
                             .rows = chunk.in_pairs}));
    CADRE_ASSIGN_OR_RETURN(
        chunk.ticket,
        Launch(&runtime, ExchangeKind::kCombine,
               [&ctx, &chunk, &runtime, d_rows, row_words, p_words] {
                 CADRE_RETURN_IF_ERROR(Exchange(
                     ctx.exec, runtime.group, d_rows, chunk.received.rows,
                     chunk.out_rows, chunk.sent.rows, row_words));
                 return Exchange(ctx.exec, runtime.group, chunk.in_pairs,
                                 chunk.received.pairs, chunk.out_pairs,
                                 chunk.sent.pairs, p_words);
               }));
  }
  PhaseScope dispatch(ctx.phases, Phase::kDispatch);
  CADRE_RETURN_IF_ERROR(SetZero(ctx.exec, d_weights));
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(
        MoeCombine(ctx.exec, {.rows = chunk.out_rows,
                              .row_of = chunk.row_of,
                              .y = d_in.Rows(chunk.begin, chunk.end),
                              .accumulate = accumulate}));
    CADRE_RETURN_IF_ERROR(MoeScatterPairs(
        ctx.exec, {.values = chunk.out_pairs,
                   .pair_source = chunk.pair_source,
                   .choices = choices_.Rows(chunk.begin, chunk.end),
                   .weights = d_weights.Rows(chunk.begin, chunk.end)}));
  }
  return absl::OkStatus();
}

}  // namespace cadre
