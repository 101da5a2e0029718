#include "kernels/cast/cast.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

CADRE_CUDA_IMPL absl::Status CastCuda(const Exec& exec, const Tensor& from,
                                      const Tensor& to);

absl::Status Cast(const Exec& exec, const Tensor& from, const Tensor& to) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, "cast", "from", from, 0));
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, "cast", "to", to, 0));
  if (from.num_elements() != to.num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cast: from is ", from.DebugString(), ", to is ",
                     to.DebugString(), "; they hold equally many elements"));
  }
  if (exec.backend == Backend::kCuda)
    return CastCuda ? CastCuda(exec, from, to) : NoCudaError("cast");
  return DispatchCpu(from.dtype(), [&](auto a) {
    return DispatchCpu(to.dtype(), [&](auto b) {
      const auto source = from.span<decltype(a)>();
      std::transform(source.begin(), source.end(), to.data<decltype(b)>(),
                     [](auto v) { return static_cast<decltype(b)>(v); });
      return absl::OkStatus();
    });
  });
}

}  // namespace cadre
