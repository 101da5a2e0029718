#include "worker/model/expert_dispatch.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/moe_permute/moe_permute.h"

namespace cadre {
namespace {

constexpr int64_t kWordBytes = sizeof(float);  // of what travels

int64_t Words(DType dtype) { return SizeOf(dtype) / kWordBytes; }

std::vector<int64_t> Scaled(const std::vector<int64_t>& counts,
                            int64_t factor) {
  std::vector<int64_t> out = counts;
  for (int64_t& n : out) n *= factor;
  return out;
}

int64_t Sum(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (int64_t n : counts) sum += n;
  return sum;
}

// Moves items of `words` words; counts are items by rank.
absl::Status Exchange(Communicator* group, const Tensor& send,
                      const std::vector<int64_t>& send_counts,
                      const Tensor& recv,
                      const std::vector<int64_t>& recv_counts, int64_t words) {
  if (group == nullptr) {
    if (send.num_bytes() > 0) {
      std::memcpy(recv.raw(), send.raw(), send.num_bytes());
    }
    return absl::OkStatus();
  }
  const auto view = [](const Tensor& t) {
    return absl::Span<float>(static_cast<float*>(t.raw()),
                             t.num_bytes() / kWordBytes);
  };
  return group->AllToAllV(view(send), Scaled(send_counts, words), view(recv),
                          Scaled(recv_counts, words));
}

}  // namespace

void ExpertDispatch::SplitTokens(const LayerContext& ctx, const Tensor& ids) {
  const ExpertRuntime& runtime = *ctx.experts;
  const ExpertParallel& where = runtime.experts;
  const int64_t T = ids.dim(0), k = ids.dim(1), n = runtime.chunks;
  ChooseSlots(ids.span<int32_t>(), where.placement, layer_, where.rank,
              &slots_);
  while (static_cast<int64_t>(chunks_.size()) < n) {
    chunks_.push_back({.experts = RoutedExperts(experts_)});
  }
  send_counts_.assign(where.size() * n * 2, 0);
  recv_counts_.assign(where.size() * n * 2, 0);
  for (int64_t c = 0; c < n; ++c) {
    Chunk& chunk = chunks_[c];
    chunk.begin = T * c / n;
    chunk.end = T * (c + 1) / n;
    BuildSendTables(absl::MakeConstSpan(slots_).subspan(
                        chunk.begin * k, (chunk.end - chunk.begin) * k),
                    k, where.size(), where.slots_per_rank(), &chunk.send);
    for (int rank = 0; rank < where.size(); ++rank) {
      send_counts_[(rank * n + c) * 2] = chunk.send.rows[rank];
      send_counts_[(rank * n + c) * 2 + 1] = chunk.send.pairs[rank];
    }
  }
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

// The rows and pairs that a chunk sends.
absl::Status ExpertDispatch::Pack(const LayerContext& ctx, const Tensor& in,
                                  const Tensor& weights, Chunk* chunk) {
  SendTables& send = chunk->send;
  const int64_t tokens = chunk->end - chunk->begin, fan = send.fan_out;
  const int64_t ranks = ctx.experts->experts.size();
  chunk->row_source = ctx.saved->Allocate(DType::kI32, {tokens * fan});
  chunk->row_of = ctx.saved->Allocate(DType::kI32, {tokens, fan});
  CADRE_RETURN_IF_ERROR(MoePermute(
      ctx.exec,
      {.ids = Tensor(send.destinations.data(), DType::kI32, {tokens, fan}),
       .offsets = ctx.scratch->Allocate(DType::kI32, {ranks + 1}),
       .row_source = chunk->row_source,
       .row_of = chunk->row_of}));
  chunk->out_rows = ctx.Scratch({send.num_rows(), in.dim(1)});
  CADRE_RETURN_IF_ERROR(
      MoeGather(ctx.exec, {.x = in.Rows(chunk->begin, chunk->end),
                           .row_source = chunk->row_source,
                           .top_k = fan,
                           .rows = chunk->out_rows}));
  // A pair is its slot and its weight.
  const int64_t size = SizeOf(weights.dtype()), words = Words(weights.dtype());
  chunk->out_pairs =
      ctx.scratch->Allocate(DType::kI32, {send.num_pairs(), 1 + words});
  const char* const p = static_cast<const char*>(weights.raw()) +
                        chunk->begin * weights.dim(1) * size;
  auto* at = static_cast<char*>(chunk->out_pairs.raw());
  for (int64_t i = 0; i < send.num_pairs(); ++i) {
    std::memcpy(at, &send.pair_slot[i], kWordBytes);
    std::memcpy(at + kWordBytes, p + send.pair_source[i] * size, size);
    at += kWordBytes + size;
  }
  return absl::OkStatus();
}

// Slots and weights of the rows received.
absl::Status ExpertDispatch::Unpack(const LayerContext& ctx, int64_t top_k,
                                    Chunk* chunk) {
  const int64_t size = SizeOf(ctx.param_dtype);
  const int64_t spr = ctx.experts->experts.slots_per_rank();
  const int64_t pairs = chunk->in_pairs.dim(0), rows = chunk->in_rows.dim(0);
  const int64_t width = std::min(top_k, spr);
  std::vector<int32_t> pair_slot(pairs);
  const auto* const words = static_cast<const char*>(chunk->in_pairs.raw());
  for (int64_t i = 0; i < pairs; ++i) {
    std::memcpy(&pair_slot[i], words + i * (kWordBytes + size), kWordBytes);
  }
  if (!BuildReceiveTables(pair_slot, rows, width, spr, &chunk->received)) {
    return absl::InternalError(absl::StrCat(
        "dispatch to MoE layer ", layer_, ": ", pairs, " pairs do not fit ",
        rows, " rows of at most ", width, " of ", spr,
        " slots; do all ranks use the same placement?"));
  }
  chunk->slots = ctx.saved->Allocate(DType::kI32, {rows, width});
  chunk->weights = ctx.SavedParam({rows, width});
  if (rows == 0) return absl::OkStatus();
  std::memcpy(chunk->slots.raw(), chunk->received.slots.data(),
              chunk->slots.num_bytes());
  std::memset(chunk->weights.raw(), 0, chunk->weights.num_bytes());
  auto* const weights = static_cast<char*>(chunk->weights.raw());
  for (int64_t i = 0; i < pairs; ++i) {
    std::memcpy(weights + chunk->received.pair_place[i] * size,
                words + i * (kWordBytes + size) + kWordBytes, size);
  }
  return absl::OkStatus();
}

void ExpertDispatch::CountTraffic(const LayerContext& ctx, int64_t width) {
  ExpertTraffic& traffic = ctx.experts->traffic;
  const int me = ctx.experts->experts.rank;
  const int64_t row = width * SizeOf(ctx.dtype), p = SizeOf(ctx.param_dtype);
  for (int64_t c = 0; c < ctx.experts->chunks; ++c) {
    const Chunk& chunk = chunks_[c];
    const int64_t rows = Sum(chunk.send.rows) - chunk.send.rows[me];
    const int64_t pairs = Sum(chunk.send.pairs) - chunk.send.pairs[me];
    traffic.dispatch_bytes += rows * row + pairs * (kWordBytes + p);
    traffic.combine_bytes +=
        (Sum(chunk.received_rows) - chunk.received_rows[me]) * row;
    if (ctx.replay) continue;
    traffic.rows += rows;
    traffic.pairs += pairs;
  }
  traffic.count_bytes += (ctx.experts->experts.size() - 1) *
                         ctx.experts->chunks * 2 *
                         static_cast<int64_t>(sizeof(int64_t));
}

absl::Status ExpertDispatch::Forward(const LayerContext& ctx, const Tensor& in,
                                     const Tensor& ids, const Tensor& weights,
                                     const Tensor& out, const Filler& filler) {
  if (ctx.exec.backend != Backend::kCpu) {
    return absl::UnimplementedError(
        "dispatching tokens to experts of other ranks runs on the CPU only; "
        "set parallelism.expert_parallel_size to 1");
  }
  ExpertRuntime& runtime = *ctx.experts;
  const ArenaScope memory(ctx.scratch);
  const ExchangeScope scope(&runtime.queue);
  SplitTokens(ctx, ids);
  const absl::Span<Chunk> chunks(chunks_.data(), runtime.chunks);
  const auto counts =
      runtime.queue.Launch([this, &ctx] { return ExchangeCounts(ctx); });
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(Pack(ctx, in, weights, &chunk));
  }
  CADRE_RETURN_IF_ERROR(runtime.queue.Wait(counts));

  const int64_t width = in.dim(1), words = 1 + Words(weights.dtype());
  const int64_t row_words = width * Words(in.dtype());
  for (int64_t c = 0; c < runtime.chunks; ++c) {
    Chunk& chunk = chunks[c];
    chunk.received_rows.resize(runtime.experts.size());
    chunk.received_pairs.resize(runtime.experts.size());
    for (int rank = 0; rank < runtime.experts.size(); ++rank) {
      const int64_t at = (rank * runtime.chunks + c) * 2;
      chunk.received_rows[rank] = recv_counts_[at];
      chunk.received_pairs[rank] = recv_counts_[at + 1];
    }
    chunk.in_rows = ctx.Scratch({Sum(chunk.received_rows), width});
    chunk.in_pairs =
        ctx.scratch->Allocate(DType::kI32, {Sum(chunk.received_pairs), words});
    chunk.ticket = runtime.queue.Launch([&chunk, &runtime, row_words, words] {
      CADRE_RETURN_IF_ERROR(Exchange(runtime.group, chunk.out_rows,
                                     chunk.send.rows, chunk.in_rows,
                                     chunk.received_rows, row_words));
      return Exchange(runtime.group, chunk.out_pairs, chunk.send.pairs,
                      chunk.in_pairs, chunk.received_pairs, words);
    });
  }
  CountTraffic(ctx, width);
  CADRE_RETURN_IF_ERROR(filler());
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(Unpack(ctx, ids.dim(1), &chunk));
    const Tensor computed = ctx.Scratch({chunk.in_rows.dim(0), width});
    CADRE_RETURN_IF_ERROR(chunk.experts.Forward(ctx, chunk.in_rows, chunk.slots,
                                                chunk.weights, computed));
    // What came back lies where the rows lay that were sent.
    chunk.ticket =
        runtime.queue.Launch([&chunk, &runtime, computed, row_words] {
          return Exchange(runtime.group, computed, chunk.received_rows,
                          chunk.out_rows, chunk.send.rows, row_words);
        });
  }
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
  ExpertRuntime& runtime = *ctx.experts;
  const ArenaScope memory(ctx.scratch);
  const ExchangeScope scope(&runtime.queue);
  const absl::Span<Chunk> chunks(chunks_.data(), runtime.chunks);
  const int64_t width = d_out.dim(1), top_k = d_weights.dim(1);
  const int64_t row_words = width * Words(d_out.dtype());
  const int64_t p_words = Words(d_weights.dtype());
  const int64_t p_size = SizeOf(d_weights.dtype());
  ExpertTraffic& traffic = runtime.traffic;
  const int me = runtime.experts.rank;
  for (Chunk& chunk : chunks) {
    chunk.out_rows = ctx.Scratch({chunk.send.num_rows(), width});
    chunk.in_rows = ctx.Scratch({chunk.received.num_rows, width});
    CADRE_RETURN_IF_ERROR(
        MoeGather(ctx.exec, {.x = d_out.Rows(chunk.begin, chunk.end),
                             .row_source = chunk.row_source,
                             .top_k = chunk.send.fan_out,
                             .rows = chunk.out_rows}));
    chunk.ticket = runtime.queue.Launch([&chunk, &runtime, row_words] {
      return Exchange(runtime.group, chunk.out_rows, chunk.send.rows,
                      chunk.in_rows, chunk.received_rows, row_words);
    });
    traffic.backward_dispatch_bytes +=
        (Sum(chunk.send.rows) - chunk.send.rows[me]) * row_words * kWordBytes;
    traffic.backward_combine_bytes +=
        (Sum(chunk.received_rows) - chunk.received_rows[me]) * row_words *
            kWordBytes +
        (Sum(chunk.received_pairs) - chunk.received_pairs[me]) * p_size;
  }
  CADRE_RETURN_IF_ERROR(filler());
  for (Chunk& chunk : chunks) {
    const int64_t rows = chunk.received.num_rows;
    const auto pairs = static_cast<int64_t>(chunk.received.pair_place.size());
    const Tensor d_rows = ctx.Scratch({rows, width});
    const Tensor d_p = ctx.ScratchParam({rows, chunk.received.width});
    chunk.in_pairs = ctx.ScratchParam({pairs, 1});
    chunk.out_pairs = ctx.ScratchParam({chunk.send.num_pairs(), 1});
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(chunk.experts.Backward(ctx, chunk.in_rows, d_p,
                                                 d_rows, /*accumulate=*/false));
    for (int64_t i = 0; i < pairs; ++i) {
      std::memcpy(static_cast<char*>(chunk.in_pairs.raw()) + i * p_size,
                  static_cast<const char*>(d_p.raw()) +
                      chunk.received.pair_place[i] * p_size,
                  p_size);
    }
    chunk.ticket =
        runtime.queue.Launch([&chunk, &runtime, d_rows, row_words, p_words] {
          CADRE_RETURN_IF_ERROR(Exchange(runtime.group, d_rows,
                                         chunk.received_rows, chunk.out_rows,
                                         chunk.send.rows, row_words));
          return Exchange(runtime.group, chunk.in_pairs, chunk.received_pairs,
                          chunk.out_pairs, chunk.send.pairs, p_words);
        });
  }
  if (d_weights.num_bytes() > 0) {
    std::memset(d_weights.raw(), 0, d_weights.num_bytes());
  }
  for (Chunk& chunk : chunks) {
    CADRE_RETURN_IF_ERROR(runtime.queue.Wait(chunk.ticket));
    CADRE_RETURN_IF_ERROR(
        MoeCombine(ctx.exec, {.rows = chunk.out_rows,
                              .row_of = chunk.row_of,
                              .y = d_in.Rows(chunk.begin, chunk.end),
                              .accumulate = accumulate}));
    auto* const to =
        static_cast<char*>(d_weights.raw()) + chunk.begin * top_k * p_size;
    for (int64_t i = 0; i < chunk.send.num_pairs(); ++i) {
      std::memcpy(to + chunk.send.pair_source[i] * p_size,
                  static_cast<const char*>(chunk.out_pairs.raw()) + i * p_size,
                  p_size);
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
