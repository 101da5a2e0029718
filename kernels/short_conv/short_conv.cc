#include "kernels/short_conv/short_conv.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// short_conv_cpu.cc
absl::Status ShortConvForwardCpu(const Exec& exec, const ShortConvForwardArgs&);
absl::Status ShortConvBackwardCpu(const Exec& exec,
                                  const ShortConvBackwardArgs&);
CADRE_CUDA_IMPL absl::Status ShortConvForwardCuda(const Exec& exec,
                                                  const ShortConvForwardArgs&);
CADRE_CUDA_IMPL absl::Status ShortConvBackwardCuda(
    const Exec& exec, const ShortConvBackwardArgs&);

namespace {

constexpr char kOp[] = "short_conv";

absl::Status CheckShared(const Exec& exec, const Tensor& x, const Tensor& w,
                         const Tensor& cu_seqlens) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 2));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "x", x, x.dtype(), {kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "w", w, ParamDType(exec, x.dtype()),
                                    {x.dim(1), kAnyDim}));
  if (w.dim(1) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": w is ", w.DebugString(), ", expected at least one tap"));
  }
  return CheckCuSeqlens(exec, kOp, cu_seqlens, x.dim(0));
}

}  // namespace

absl::Status ShortConvForward(const Exec& exec,
                              const ShortConvForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args.x, args.w, args.cu_seqlens));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", args.y, args.x));
  if (exec.backend == Backend::kCuda) {
    return ShortConvForwardCuda ? ShortConvForwardCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return ShortConvForwardCpu(exec, args);
}

absl::Status ShortConvBackward(const Exec& exec,
                               const ShortConvBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args.x, args.w, args.cu_seqlens));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dy", args.dy, args.x));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", args.dx, args.x));
  if (args.dw.present()) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dw", args.dw, args.w));
  }
  if (exec.backend == Backend::kCuda) {
    return ShortConvBackwardCuda ? ShortConvBackwardCuda(exec, args)
                                 : NoCudaError(kOp);
  }
  return ShortConvBackwardCpu(exec, args);
}

}  // namespace cadre
