#ifndef CADRE_WORKER_COMM_ARGUMENTS_H_
#define CADRE_WORKER_COMM_ARGUMENTS_H_

// Checks of collective arguments that the host communicators share.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace cadre {

// `whole` elements must be `size` parts of `part` elements.
absl::Status CheckParts(const char* call, int64_t whole, int64_t part,
                        int size);

absl::Status CheckRoot(const char* call, int root, int size);

// One non-negative count per rank, together the buffer's length; what a rank
// sends to itself it also receives.
absl::Status CheckAllToAll(int64_t send, absl::Span<const int64_t> send_counts,
                           int64_t recv, absl::Span<const int64_t> recv_counts,
                           int rank, int size);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_ARGUMENTS_H_
