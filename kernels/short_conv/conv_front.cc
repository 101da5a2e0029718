#include "kernels/short_conv/conv_front.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {

// conv_front.cu. False where shapes need a launch for each step.
CADRE_CUDA_IMPL absl::StatusOr<bool> ConvFrontForwardCuda(
    const Exec& exec, const ConvFrontForwardArgs&);
CADRE_CUDA_IMPL absl::StatusOr<bool> ConvFrontBackwardCuda(
    const Exec& exec, const ConvFrontBackwardArgs&);

namespace {

constexpr char kOp[] = "conv_front";

// What both passes ask of a part.
template <typename Part>
absl::Status CheckPart(const Exec& exec, const Part& part, const Part& first,
                       const Tensor& cu_seqlens) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", part.x, 2));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "x", part.x, first.x.dtype(),
                                    {first.x.dim(0), kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "w", part.w,
                                    ParamDType(exec, part.x.dtype()),
                                    {part.x.dim(1), first.w.dim(1)}));
  if (part.w.dim(1) < 1 || part.unit_dim < 0 ||
      (part.unit_dim > 0 && part.x.dim(1) % part.unit_dim != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": x is ", part.x.DebugString(), ", w ", part.w.DebugString(),
        " and unit_dim ", part.unit_dim,
        ", expected at least one tap and whole heads of unit_dim channels"));
  }
  return CheckCuSeqlens(exec, kOp, cu_seqlens, part.x.dim(0));
}

template <typename Args>
absl::Status CheckCount(const Args& args) {
  if (args.parts.size() <= 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": ", args.parts.size(), " parts, but at most 3 share a launch"));
}

Tensor Heads(const Tensor& x, int64_t unit_dim) {
  return x.Reshape({x.dim(0), x.dim(1) / unit_dim, unit_dim});
}

}  // namespace

absl::Status ConvFrontForward(const Exec& exec,
                              const ConvFrontForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckCount(args));
  for (const ConvFrontPart& part : args.parts) {
    CADRE_RETURN_IF_ERROR(
        CheckPart(exec, part, args.parts[0], args.cu_seqlens));
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", part.y, part.x));
  }
  if (exec.backend == Backend::kCuda) {
    if (!ConvFrontForwardCuda) return NoCudaError(kOp);
    CADRE_ASSIGN_OR_RETURN(const bool done, ConvFrontForwardCuda(exec, args));
    if (done) return absl::OkStatus();
  }
  for (const ConvFrontPart& part : args.parts) {
    CADRE_RETURN_IF_ERROR(ShortConvForward(exec, {.x = part.x,
                                                  .w = part.w,
                                                  .cu_seqlens = args.cu_seqlens,
                                                  .y = part.y}));
    if (part.unit_dim == 0) continue;
    const Tensor y = Heads(part.y, part.unit_dim);
    CADRE_RETURN_IF_ERROR(
        L2NormForward(exec, {.x = y, .y = y, .eps = args.eps}));
  }
  return absl::OkStatus();
}

absl::Status ConvFrontBackward(const Exec& exec,
                               const ConvFrontBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckCount(args));
  for (const ConvFrontBackwardPart& part : args.parts) {
    CADRE_RETURN_IF_ERROR(
        CheckPart(exec, part, args.parts[0], args.cu_seqlens));
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dy", part.dy, part.x));
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", part.dx, part.x));
    if (part.dw.present()) {
      CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dw", part.dw, part.w));
    }
  }
  if (exec.backend == Backend::kCuda) {
    if (!ConvFrontBackwardCuda) return NoCudaError(kOp);
    CADRE_ASSIGN_OR_RETURN(const bool done, ConvFrontBackwardCuda(exec, args));
    if (done) return absl::OkStatus();
  }
  for (const ConvFrontBackwardPart& part : args.parts) {
    if (part.unit_dim > 0) {
      // What the norm was given, in dx until dx itself is due.
      CADRE_RETURN_IF_ERROR(
          ShortConvForward(exec, {.x = part.x,
                                  .w = part.w,
                                  .cu_seqlens = args.cu_seqlens,
                                  .y = part.dx}));
      const Tensor dy = Heads(part.dy, part.unit_dim);
      CADRE_RETURN_IF_ERROR(
          L2NormBackward(exec, {.x = Heads(part.dx, part.unit_dim),
                                .dy = dy,
                                .dx = dy,
                                .eps = args.eps}));
    }
    CADRE_RETURN_IF_ERROR(
        ShortConvBackward(exec, {.x = part.x,
                                 .w = part.w,
                                 .cu_seqlens = args.cu_seqlens,
                                 .dy = part.dy,
                                 .dx = part.dx,
                                 .dw = part.dw}));
  }
  return absl::OkStatus();
}

}  // namespace cadre
