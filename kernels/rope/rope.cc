#include "kernels/rope/rope.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// rope_cpu.cc
absl::Status RopeForwardCpu(const Exec& exec, const RopeArgs&);
absl::Status RopeBackwardCpu(const Exec& exec, const RopeArgs&);
CADRE_CUDA_IMPL absl::Status RopeForwardCuda(const Exec& exec, const RopeArgs&);
CADRE_CUDA_IMPL absl::Status RopeBackwardCuda(const Exec& exec,
                                              const RopeArgs&);

namespace {

constexpr char kOp[] = "rope";

absl::Status Check(const Exec& exec, const RopeArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 3));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "x", args.x, args.x.dtype(),
                                    {kAnyDim, kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "positions", args.positions,
                                    DType::kI32, {args.x.dim(0)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "inv_freq", args.inv_freq, DType::kF32, {kAnyDim}));
  const int64_t width = 2 * args.inv_freq.dim(0);
  if (args.offset < 0 || args.offset + width > args.x.dim(2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": the rotated slice begins at ", args.offset, " and has ", width,
        " elements, but rows of x have ", args.x.dim(2)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RopeForward(const Exec& exec, const RopeArgs& args) {
  CADRE_RETURN_IF_ERROR(Check(exec, args));
  if (exec.backend == Backend::kCuda)
    return RopeForwardCuda ? RopeForwardCuda(exec, args) : NoCudaError(kOp);
  return RopeForwardCpu(exec, args);
}

absl::Status RopeBackward(const Exec& exec, const RopeArgs& args) {
  CADRE_RETURN_IF_ERROR(Check(exec, args));
  if (exec.backend == Backend::kCuda)
    return RopeBackwardCuda ? RopeBackwardCuda(exec, args) : NoCudaError(kOp);
  return RopeBackwardCpu(exec, args);
}

}  // namespace cadre
