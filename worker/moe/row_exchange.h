#ifndef CADRE_WORKER_MOE_ROW_EXCHANGE_H_
#define CADRE_WORKER_MOE_ROW_EXCHANGE_H_

// Rows of expert tensors from slot to slot of a group of ranks: what replicas
// and re-placement are made of. Plain functions.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/comm/communicator.h"

namespace cadre {

struct RowCopy {
  int64_t from_slot = 0, to_slot = 0;  // of the group
};

// A tensor [slots per rank, ...] of this rank and what moves of it. The list is
// the same on all ranks; the tensors have one shape.
struct RowTransfer {
  Tensor rows;
  const std::vector<RowCopy>* copies = nullptr;
  bool add = false;  // to what the target row holds (f32, f64), in list order
};

// All sources are read before any target is written, so rows may change places.
// One all-to-all. `group` may be null: one rank. INVALID_ARGUMENT for rows
// whose bytes are no multiple of 4.
absl::Status ExchangeRows(const Exec& exec, Communicator* group,
                          absl::Span<const RowTransfer> transfers);

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_ROW_EXCHANGE_H_
