#include "kernels/short_conv/conv_front.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/common/column_groups.h"
#include "kernels/elementwise/elementwise.h"
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

// What both passes ask of a part; `narrow` is y or dy.
template <typename Part>
absl::Status CheckPart(const Exec& exec, const Part& part, const Part& first,
                       const Tensor& narrow, const Tensor& cu_seqlens) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", part.x, 2));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "x", part.x, first.x.dtype(),
                                    {first.x.dim(0), kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckTensor(
      kOp, "w", part.w, ParamDType(exec, part.x.dtype()),
      {part.at.group == 0 ? part.x.dim(1) : kAnyDim, first.w.dim(1)}));
  const int64_t channels = part.w.dim(0);
  CADRE_RETURN_IF_ERROR(CheckColumns(kOp, "x", part.x, part.at, channels));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "y or dy", narrow, part.x.dtype(),
                                    {part.x.dim(0), channels}));
  if (part.w.dim(1) < 1 || part.unit_dim < 0 ||
      (part.unit_dim > 0 && channels % part.unit_dim != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": x is ", part.x.DebugString(), ", w ", part.w.DebugString(),
        " and unit_dim ", part.unit_dim,
        ", expected at least one tap and whole heads of unit_dim channels"));
  }
  return CheckCuSeqlens(exec, kOp, cu_seqlens, part.x.dim(0));
}

// What a norm's backward finds its input in until dx is due: dx itself, unless
// its channels do not lie there as [T,C].
const Tensor& NormInput(const ConvFrontBackwardPart& part) {
  return part.x.dim(1) == part.w.dim(0) && part.at.group == 0 ? part.dx
                                                              : part.spare;
}

template <typename Args>
absl::Status CheckMoves(const Exec& exec, const Args& args) {
  for (const ConvFrontMove& move : args.moves) {
    const Tensor& wide = move.wide;
    CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "wide", wide, 2));
    CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "narrow", move.narrow, wide.dtype(),
                                      {wide.dim(0), kAnyDim}));
    CADRE_RETURN_IF_ERROR(
        CheckColumns(kOp, "wide", wide, move.at, move.narrow.dim(1)));
    if (args.parts.empty()) continue;
    const Tensor& x = args.parts[0].x;
    CADRE_RETURN_IF_ERROR(CheckTensor(
        kOp, "wide", wide, ParamDType(exec, x.dtype()), {x.dim(0), kAnyDim}));
  }
  return absl::OkStatus();
}

template <typename Args>
absl::Status CheckCount(const Args& args) {
  if (args.parts.size() <= 3 && args.moves.size() <= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": ", args.parts.size(), " parts and ", args.moves.size(),
      " moves, but at most 3 and 2 share a launch"));
}

// Groups at once if nothing is behind the last one's pitch, else one by one.
absl::Status Move(const Exec& exec, const ConvFrontMove& move, bool widen) {
  const int64_t tokens = move.wide.dim(0), channels = move.narrow.dim(1);
  if (channels == 0) return absl::OkStatus();
  const int64_t group = move.at.group == 0 ? channels : move.at.group;
  const int64_t groups = channels / group;
  const bool even = move.wide.dim(1) == groups * move.at.pitch;
  for (int64_t g = 0; g < (even ? 1 : groups); ++g) {
    const int64_t wide = move.at.Column(g * group), narrow = g * group;
    CADRE_RETURN_IF_ERROR(
        CopyColumns(exec, {.src = widen ? move.narrow : move.wide,
                           .dst = widen ? move.wide : move.narrow,
                           .rows = even ? tokens * groups : tokens,
                           .src_column = widen ? narrow : wide,
                           .dst_column = widen ? wide : narrow,
                           .width = group}));
  }
  return absl::OkStatus();
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
        CheckPart(exec, part, args.parts[0], part.y, args.cu_seqlens));
  }
  CADRE_RETURN_IF_ERROR(CheckMoves(exec, args));
  if (exec.backend == Backend::kCuda) {
    if (!ConvFrontForwardCuda) return NoCudaError(kOp);
    CADRE_ASSIGN_OR_RETURN(const bool done, ConvFrontForwardCuda(exec, args));
    if (done) return absl::OkStatus();
  }
  for (const ConvFrontPart& part : args.parts) {
    CADRE_RETURN_IF_ERROR(ShortConvForward(exec, {.x = part.x,
                                                  .w = part.w,
                                                  .cu_seqlens = args.cu_seqlens,
                                                  .y = part.y,
                                                  .at = part.at}));
    if (part.unit_dim == 0) continue;
    const Tensor y = Heads(part.y, part.unit_dim);
    CADRE_RETURN_IF_ERROR(
        L2NormForward(exec, {.x = y, .y = y, .eps = args.eps}));
  }
  for (const ConvFrontMove& move : args.moves)
    CADRE_RETURN_IF_ERROR(Move(exec, move, /*widen=*/false));
  return absl::OkStatus();
}

absl::Status ConvFrontBackward(const Exec& exec,
                               const ConvFrontBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckCount(args));
  for (const ConvFrontBackwardPart& part : args.parts) {
    CADRE_RETURN_IF_ERROR(
        CheckPart(exec, part, args.parts[0], part.dy, args.cu_seqlens));
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", part.dx, part.x));
    if (part.unit_dim > 0) {
      CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "spare", NormInput(part),
                                        part.x.dtype(),
                                        {part.x.dim(0), part.w.dim(0)}));
    }
    if (part.dw.present()) {
      CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dw", part.dw, part.w));
    }
  }
  CADRE_RETURN_IF_ERROR(CheckMoves(exec, args));
  if (exec.backend == Backend::kCuda) {
    if (!ConvFrontBackwardCuda) return NoCudaError(kOp);
    CADRE_ASSIGN_OR_RETURN(const bool done, ConvFrontBackwardCuda(exec, args));
    if (done) return absl::OkStatus();
  }
  for (const ConvFrontBackwardPart& part : args.parts) {
    if (part.unit_dim > 0) {
      CADRE_RETURN_IF_ERROR(
          ShortConvForward(exec, {.x = part.x,
                                  .w = part.w,
                                  .cu_seqlens = args.cu_seqlens,
                                  .y = NormInput(part),
                                  .at = part.at}));
      const Tensor dy = Heads(part.dy, part.unit_dim);
      CADRE_RETURN_IF_ERROR(
          L2NormBackward(exec, {.x = Heads(NormInput(part), part.unit_dim),
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
                                 .dw = part.dw,
                                 .at = part.at}));
  }
  for (const ConvFrontMove& move : args.moves)
    CADRE_RETURN_IF_ERROR(Move(exec, move, /*widen=*/true));
  return absl::OkStatus();
}

}  // namespace cadre
