#include "kernels/common/column_groups.h"

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

bool Fits(const Tensor& x, const ColumnGroups& at, int64_t channels) {
  if (x.rank() != 2) return false;
  if (at.group == 0) return at.first == 0 && x.dim(1) == channels;
  if (at.first < 0 || at.group < 0 || channels % at.group != 0) return false;
  if (channels > at.group && at.pitch < at.group) return false;
  return channels == 0 || at.Column(channels - 1) < x.dim(1);
}

}  // namespace

absl::Status CheckColumns(absl::string_view op, absl::string_view name,
                          const Tensor& x, const ColumnGroups& at,
                          int64_t channels) {
  if (Fits(x, at, channels)) return absl::OkStatus();
  if (at.group == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", name, " is ", x.DebugString(),
                     ", expected a matrix of ", channels, " columns"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": ", name, " is ", x.DebugString(), ", expected a matrix that has ",
      channels, " channels in groups of ", at.group, ", the first at column ",
      at.first, " and each ", at.pitch, " columns behind the one before"));
}

}  // namespace cadre
