#include "kernels/router/router_z_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

CADRE_CUDA_IMPL absl::Status RouterZLossCuda(const Exec& exec,
                                             const RouterZLossArgs&);

absl::Status RouterZLoss(const Exec& exec, const RouterZLossArgs& args) {
  constexpr char kOp[] = "router z-loss";
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "logits", args.logits, 2));
  const int64_t T = args.logits.dim(0), E = args.logits.dim(1);
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "mask", args.mask, DType::kI32, {T}));
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "sum", args.sum, DType::kF64, {1}));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "dlogits", args.dlogits,
                                            args.logits.dtype(), {T, E}));
  if (exec.backend == Backend::kCuda) {
    return RouterZLossCuda ? RouterZLossCuda(exec, args) : NoCudaError(kOp);
  }
  return DispatchCpu(args.logits.dtype(), [&](auto scalar) {
    using S = decltype(scalar);
    for (int64_t t = 0; t < T; ++t) {
      if (args.mask.present() && args.mask.data<int32_t>()[t] == 0) continue;
      const S* const row = args.logits.data<S>() + t * E;
      const S largest = *std::max_element(row, row + E);
      S total = 0;
      for (int64_t e = 0; e < E; ++e) total += std::exp(row[e] - largest);
      const S z = largest + std::log(total);
      if (args.sum.present()) {
        args.sum.data<double>()[0] += static_cast<double>(z * z);
      }
      if (!args.dlogits.present()) continue;
      S* const grad = args.dlogits.data<S>() + t * E;
      const S factor = static_cast<S>(2 * args.coefficient) * z;
      for (int64_t e = 0; e < E; ++e) grad[e] += factor * std::exp(row[e] - z);
    }
    return absl::OkStatus();
  });
}

}  // namespace cadre
