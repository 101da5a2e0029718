#include "kernels/short_conv/short_conv.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/common/column_groups.h"

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

template <typename Args>
absl::Status CheckShared(const Exec& exec, const Args& args) {
  const Tensor &x = args.x, &w = args.w;
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 2));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "w", w, ParamDType(exec, x.dtype()),
                  {args.at.group == 0 ? x.dim(1) : kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckColumns(kOp, "x", x, args.at, w.dim(0)));
  if (w.dim(1) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": w is ", w.DebugString(), ", expected at least one tap"));
  }
  return CheckCuSeqlens(exec, kOp, args.cu_seqlens, x.dim(0));
}

}  // namespace

absl::Status ShortConvForward(const Exec& exec,
                              const ShortConvForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "y", args.y, args.x.dtype(),
                                    {args.x.dim(0), args.w.dim(0)}));
  if (exec.backend == Backend::kCuda) {
    return ShortConvForwardCuda ? ShortConvForwardCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return ShortConvForwardCpu(exec, args);
}

absl::Status ShortConvBackward(const Exec& exec,
                               const ShortConvBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "dy", args.dy, args.x.dtype(),
                                    {args.x.dim(0), args.w.dim(0)}));
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
