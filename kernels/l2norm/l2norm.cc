#include "kernels/l2norm/l2norm.h"

#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// l2norm_cpu.cc
absl::Status L2NormForwardCpu(const Exec& exec, const L2NormForwardArgs&);
absl::Status L2NormBackwardCpu(const Exec& exec, const L2NormBackwardArgs&);
CADRE_CUDA_IMPL absl::Status L2NormForwardCuda(const Exec& exec,
                                               const L2NormForwardArgs&);
CADRE_CUDA_IMPL absl::Status L2NormBackwardCuda(const Exec& exec,
                                                const L2NormBackwardArgs&);

namespace {
constexpr char kOp[] = "l2norm";
}  // namespace

absl::Status L2NormForward(const Exec& exec, const L2NormForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 1));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", args.y, args.x));
  if (exec.backend == Backend::kCuda) {
    return L2NormForwardCuda ? L2NormForwardCuda(exec, args) : NoCudaError(kOp);
  }
  return L2NormForwardCpu(exec, args);
}

absl::Status L2NormBackward(const Exec& exec, const L2NormBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 1));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dy", args.dy, args.x));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", args.dx, args.x));
  if (exec.backend == Backend::kCuda) {
    return L2NormBackwardCuda ? L2NormBackwardCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return L2NormBackwardCpu(exec, args);
}

}  // namespace cadre
