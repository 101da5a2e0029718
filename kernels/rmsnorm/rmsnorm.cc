#include "kernels/rmsnorm/rmsnorm.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// rmsnorm_cpu.cc
absl::Status RmsNormForwardCpu(const Exec& exec, const RmsNormForwardArgs&);
absl::Status RmsNormBackwardCpu(const Exec& exec, const RmsNormBackwardArgs&);
CADRE_CUDA_IMPL absl::Status RmsNormForwardCuda(const Exec& exec,
                                                const RmsNormForwardArgs&);
CADRE_CUDA_IMPL absl::Status RmsNormBackwardCuda(const Exec& exec,
                                                 const RmsNormBackwardArgs&);

namespace {

constexpr char kOp[] = "rmsnorm";

absl::Status CheckShared(const Exec& exec, const Tensor& x, const Tensor& w,
                         const Tensor& rstd) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 1));
  const DType param = ParamDType(exec, x.dtype());
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "w", w, param, {LastDim(x)}));
  if (NumRows(x) > 0 && LastDim(x) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": x is ", x.DebugString(),
                     ", but the mean of a row needs at least one element"));
  }
  if (rstd.present() &&
      (rstd.dtype() != param || rstd.num_elements() != NumRows(x))) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": rstd is ", rstd.DebugString(), ", expected ", NumRows(x), " ",
        DTypeName(param), ", one for each row of x"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNormForward(const Exec& exec, const RmsNormForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args.x, args.w, args.rstd));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", args.y, args.x));
  if (exec.backend == Backend::kCuda) {
    return RmsNormForwardCuda ? RmsNormForwardCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return RmsNormForwardCpu(exec, args);
}

absl::Status RmsNormBackward(const Exec& exec,
                             const RmsNormBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args.x, args.w, args.rstd));
  if (!args.rstd.present()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": the backward needs rstd as the forward wrote it"));
  }
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dy", args.dy, args.x));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", args.dx, args.x));
  if (args.dw.present()) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dw", args.dw, args.w));
  }
  if (exec.backend == Backend::kCuda) {
    return RmsNormBackwardCuda ? RmsNormBackwardCuda(exec, args)
                               : NoCudaError(kOp);
  }
  return RmsNormBackwardCpu(exec, args);
}

}  // namespace cadre
