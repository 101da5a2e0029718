#ifndef CADRE_WORKER_MOE_EXPERT_RUNTIME_H_
#define CADRE_WORKER_MOE_EXPERT_RUNTIME_H_

// What the MoE layers of one model share while they exchange rows with other
// ranks. Owned by the model; one training thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/device/side_stream.h"
#include "worker/moe/exchange_queue.h"
#include "worker/moe/expert_parallel.h"
#include "worker/moe/link_tiers.h"

namespace cadre {

// What a rank put on the way since the last look, bytes for itself left out:
// those never leave it.
struct ExpertTraffic {
  int64_t rows = 0;   // sent to other ranks in forward dispatches
  int64_t pairs = 0;  // (row, slot) pairs of them
  // Forward: rows and pairs out, rows back. Backward: rows out; rows and one
  // weight gradient per pair back. Both as sent by this rank.
  int64_t dispatch_bytes = 0, combine_bytes = 0;
  int64_t backward_dispatch_bytes = 0, backward_combine_bytes = 0;
  int64_t count_bytes = 0;  // sizes of what follows
  // All of these together by how far they go, and what stays here besides:
  // dispatch with the sizes, combine with the weight gradients.
  TierBytes dispatch_tiers{}, combine_tiers{};
  // Time for which computing stood still because of exchanges.
  double exposed_seconds = 0.0;
  // By MoE layer: pairs that this rank computed in forward passes, whoever sent
  // them; a recomputed pass counts nothing.
  std::vector<int64_t> computed_pairs;
  // Likewise: rows of one (token, rank) each, those for this rank included.
  std::vector<int64_t> sent_rows, received_rows;
  // Spent in the experts of this rank, both directions; host time.
  double expert_seconds = 0.0;
  // Time of the exchanges themselves, forward and backward.
  double dispatch_seconds = 0.0, combine_seconds = 0.0;
};

struct ExpertRuntime {
  ExpertRuntime(ExpertParallel where, Communicator* group,
                std::vector<LinkTier> group_tiers, int num_chunks, bool overlap)
      : experts(std::move(where)),
        group(group),
        tiers(std::move(group_tiers)),
        chunks(num_chunks),
        queue(overlap) {}

  ExpertParallel experts;
  int64_t placements = 0;             // counts changes of experts.placement
  Communicator* const group;          // null: one rank
  const std::vector<LinkTier> tiers;  // of the group's ranks
  const int chunks;                   // of a micro-batch's tokens
  // Of a GPU: what the exchanges are ordered behind; null on the CPU.
  std::unique_ptr<SideStream> side;
  ExchangeQueue queue;
  ExpertTraffic traffic;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_EXPERT_RUNTIME_H_
