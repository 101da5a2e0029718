#include "worker/model/expert_dispatch.h"

#include <algorithm>
#include <chrono>
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
  constexpr int64_t kCountBytes = 2 * sizeof(int64_t);
  for (int64_t c = 0; c < ctx.experts->chunks; ++c) {
    const Counts &sent = chunks_[c].sent, &received = chunks_[c].received;
    for (int r = 0; r < ctx.experts->experts.size(); ++r) {
      const auto tier = static_cast<size_t>(ctx.experts->tiers[r]);
      traffic.dispatch_tiers[tier] += sent.rows[r] * row +
                                      sent.pairs[r] * (kWordBytes + p) +
                                      (ctx.replay ? 0 : kCountBytes);
      if (combines) traffic.combine_tiers[tier] += received.rows[r] * row;
    }
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
  traffic.count_bytes +=
      (ctx.experts->experts.size() - 1) * ctx.experts->chunks * kCountBytes;
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
    for (int r = 0; r < runtime.experts.size(); ++r) {
      const auto tier = static_cast<size_t>(runtime.tiers[r]);
      traffic.dispatch_tiers[tier] += sent.rows[r] * row_words * kWordBytes;
      traffic.combine_tiers[tier] +=
          (received.rows[r] * row_words + received.pairs[r] * p_words) *
          kWordBytes;
    }
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
