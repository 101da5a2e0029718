#include "worker/comm/arguments.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace cadre {

absl::Status CheckParts(const char* call, int64_t whole, int64_t part,
                        int size) {
  if (whole == part * size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      call, ": ", whole, " elements are not ", size, " parts of ", part));
}

absl::Status CheckRoot(const char* call, int root, int size) {
  if (0 <= root && root < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": root ", root, " of ", size, " ranks"));
}

absl::Status CheckAllToAll(int64_t send, absl::Span<const int64_t> send_counts,
                           int64_t recv, absl::Span<const int64_t> recv_counts,
                           int rank, int size) {
  for (const auto& counts : {send_counts, recv_counts}) {
    if (static_cast<int>(counts.size()) != size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "AllToAllV: ", counts.size(), " counts for ", size, " ranks"));
    }
    for (int64_t count : counts) {
      if (count < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("AllToAllV: a count is ", count));
      }
    }
  }
  const int64_t sent =
      std::accumulate(send_counts.begin(), send_counts.end(), int64_t{0});
  const int64_t received =
      std::accumulate(recv_counts.begin(), recv_counts.end(), int64_t{0});
  if (sent != send || received != recv) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AllToAllV: counts add up to ", sent, " sent and ", received,
        " received, the buffers hold ", send, " and ", recv));
  }
  if (send_counts[rank] != recv_counts[rank]) {
    return absl::InvalidArgumentError(
        absl::StrCat("AllToAllV: rank ", rank, " sends ", send_counts[rank],
                     " elements to itself but receives ", recv_counts[rank]));
  }
  return absl::OkStatus();
}

}  // namespace cadre
