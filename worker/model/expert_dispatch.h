#ifndef CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_
#define CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_

// The routed experts of one layer when they lie on several ranks: rows out to
// the experts' ranks, through the experts there, back and summed
// (parallelism.md sections 5 and 6). Collective: every rank of the group calls
// it in the same order, with any number of tokens, none included. The counted
// transport: sizes are exchanged first, so that a GPU's host waits for them
// once a layer; a block that is run again sends what it sent before and does
// not.
//
// Tokens go in ctx.experts->chunks chunks, so that one chunk travels while
// another one is computed; `filler` is work that waits for neither. The result
// depends on the number of chunks in the rounding of weight gradients only, and
// not on whether exchanges overlap.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/buffer.h"
#include "worker/model/routed_experts.h"
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
  // overwritten, after filler ran; absent, nothing is sent back: a replay whose
  // result is not read.
  absl::Status Forward(const LayerContext& ctx, const Tensor& in,
                       const Tensor& ids, const Tensor& weights,
                       const Tensor& out, const Filler& filler);
  // Of the last Forward. d_weights [T, k] is overwritten, d_in [T, Dr] too, or
  // added to; both after filler ran.
  absl::Status Backward(const LayerContext& ctx, const Tensor& d_out,
                        const Tensor& d_weights, const Tensor& d_in,
                        bool accumulate, const Filler& filler);

 private:
  // How much goes to or comes from each rank, of a chunk.
  struct Counts {
    std::vector<int64_t> rows, pairs;
    int64_t num_rows = 0, num_pairs = 0;
  };
  struct Chunk {
    int64_t begin = 0, end = 0;  // its tokens
    Counts sent, received;       // kept for a replay
    Tensor row_source, row_of;   // where its tokens' rows lie among those sent
    Tensor pair_source;          // its pairs, in the order sent
    Tensor slots, weights;       // of the rows received
    Tensor places;               // in them, of the pairs received
    RoutedExperts experts;

    // Of the call under way; from scratch.
    Tensor out_rows, in_rows;    // rows this rank sends away, and gets
    Tensor out_pairs, in_pairs;  // what goes with them, as words
    ExchangeQueue::Ticket ticket = 0;
  };

  // The placement in force, where the exec is: anew when it has changed.
  absl::Status PlaceSlots(const LayerContext& ctx);
  // What each chunk sends, in order.
  absl::Status MakeTables(const LayerContext& ctx, const Tensor& ids);
  // The numbers of rows and pairs of all chunks.
  absl::Status ReadCounts(const LayerContext& ctx, const Tensor& offsets);
  absl::Status ExchangeCounts(const LayerContext& ctx);
  void TakeReceivedCounts(const LayerContext& ctx);
  absl::Status Pack(const LayerContext& ctx, const Tensor& in,
                    const Tensor& weights, Chunk* chunk);
  absl::Status Unpack(const LayerContext& ctx, int64_t top_k, Chunk* chunk);
  void CountTraffic(const LayerContext& ctx, int64_t width, bool combines);

  Experts experts_;
  int layer_ = 0;
  // [experts + 1] first copies, then the slots of all copies.
  Buffer placement_;
  Tensor placed_;           // the part in use
  int64_t placed_as_ = -1;  // ExpertRuntime::placements then
  std::vector<Chunk> chunks_;
  Tensor slots_, choices_;                          // [T, k], of MoeSlots
  std::vector<int64_t> send_counts_, recv_counts_;  // [ranks][chunks][2]
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_EXPERT_DISPATCH_H_
