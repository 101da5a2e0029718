#ifndef CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_
#define CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_

// The routed experts of one layer when they lie on several ranks: rows out to
// the experts' ranks, through the experts there, back and summed
// (parallelism.md sections 5 and 6). Collective: every rank of the group calls
// it in the same order, with any number of tokens, none included. The counted
// transport: sizes are exchanged first.
//
// Tokens go in ctx.experts->chunks chunks, so that one chunk travels while
// another one is computed; `filler` is work that waits for neither. The result
// depends on the number of chunks in the rounding of weight gradients only, and
// not on whether exchanges overlap.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/routed_experts.h"
#include "worker/moe/dispatch_tables.h"
#include "worker/moe/expert_runtime.h"

namespace cadre {

class ExpertDispatch {
 public:
  using Filler = std::function<absl::Status()>;

  ExpertDispatch() = default;
  // `layer` counts MoE layers.
  ExpertDispatch(Experts experts, int layer)
      : experts_(experts), layer_(layer) {}

  // in [T, Dr]; ids i32 [T, k], logical or -1; weights [T, k]. out [T, Dr] is
  // overwritten, after filler ran.
  absl::Status Forward(const LayerContext& ctx, const Tensor& in,
                       const Tensor& ids, const Tensor& weights,
                       const Tensor& out, const Filler& filler);
  // Of the last Forward. d_weights [T, k] is overwritten, d_in [T, Dr] too, or
  // added to; both after filler ran.
  absl::Status Backward(const LayerContext& ctx, const Tensor& d_out,
                        const Tensor& d_weights, const Tensor& d_in,
                        bool accumulate, const Filler& filler);

 private:
  struct Chunk {
    int64_t begin = 0, end = 0;  // its tokens
    SendTables send;
    ReceiveTables received;
    std::vector<int64_t> received_rows, received_pairs;  // of each rank
    Tensor row_source, row_of;  // where its tokens' rows lie among those sent
    Tensor slots, weights;      // of the rows received
    RoutedExperts experts;

    // Of the call under way; from scratch.
    Tensor out_rows, in_rows;    // rows this rank sends away, and gets
    Tensor out_pairs, in_pairs;  // what goes with them, as words
    ExchangeQueue::Ticket ticket = 0;
  };

  void SplitTokens(const LayerContext& ctx, const Tensor& ids);
  absl::Status ExchangeCounts(const LayerContext& ctx);
  absl::Status Pack(const LayerContext& ctx, const Tensor& in,
                    const Tensor& weights, Chunk* chunk);
  absl::Status Unpack(const LayerContext& ctx, int64_t top_k, Chunk* chunk);
  void CountTraffic(const LayerContext& ctx, int64_t width);

  Experts experts_;
  int layer_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> slots_;                      // of all pairs
  std::vector<int64_t> send_counts_, recv_counts_;  // [ranks][chunks][2]
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_
