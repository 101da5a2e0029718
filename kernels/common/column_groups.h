#ifndef CADRE_KERNELS_COMMON_COLUMN_GROUPS_H_
#define CADRE_KERNELS_COMMON_COLUMN_GROUPS_H_

// Where the channels of an operand lie in the rows of a wider matrix, such as a
// projection that makes queries, keys and values at once. A value; pure.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Runs of `group` channels, side by side, each `pitch` columns behind the one
// before it, the first one from column `first` on.
struct ColumnGroups {
  int64_t first = 0;
  int64_t group = 0;  // 0: the matrix is the operand, column c its channel c
  int64_t pitch = 0;  // of no account for a single group

  constexpr int64_t Column(int64_t channel) const {
    if (group == 0) return channel;
    return first + channel / group * pitch + channel % group;
  }
  // Whether runs of n channels from multiples of n on stay together, from
  // columns that are multiples of n on.
  constexpr bool InStepsOf(int64_t n) const {
    return first % n == 0 && group % n == 0 && pitch % n == 0;
  }
};

// OK if x [T,P], which is present, has columns for `channels` channels laid out
// as `at` says, of which no two fall together.
absl::Status CheckColumns(absl::string_view op, absl::string_view name,
                          const Tensor& x, const ColumnGroups& at,
                          int64_t channels);

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_COLUMN_GROUPS_H_
