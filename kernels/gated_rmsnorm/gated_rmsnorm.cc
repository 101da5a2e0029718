#include "kernels/gated_rmsnorm/gated_rmsnorm.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/common/column_groups.h"

namespace cadre {

// gated_rmsnorm_cpu.cc
absl::Status GatedRmsNormForwardCpu(const Exec& exec,
                                    const GatedRmsNormForwardArgs&);
absl::Status GatedRmsNormBackwardCpu(const Exec& exec,
                                     const GatedRmsNormBackwardArgs&);
CADRE_CUDA_IMPL absl::Status GatedRmsNormForwardCuda(
    const Exec& exec, const GatedRmsNormForwardArgs&);
CADRE_CUDA_IMPL absl::Status GatedRmsNormBackwardCuda(
    const Exec& exec, const GatedRmsNormBackwardArgs&);

namespace {

constexpr char kOp[] = "gated_rmsnorm";

absl::Status CheckGate(const Tensor& x, const Tensor& gate,
                       const ColumnGroups& at) {
  if (at.group == 0) return CheckLike(kOp, "gate", gate, x);
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "x beside a gate in groups", x,
                                    x.dtype(), {kAnyDim, kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "gate", gate, x.dtype(), {x.dim(0), kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckColumns(kOp, "gate", gate, at, x.dim(1) * x.dim(2)));
  if (x.dim(2) > 0 && at.group % x.dim(2) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": x is ", x.DebugString(), " and its gate in groups of ", at.group,
      " columns, expected groups of whole heads"));
}

template <typename Args>
absl::Status CheckShared(const Exec& exec, const Args& args) {
  const Tensor &x = args.x, &w = args.w;
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 1));
  CADRE_RETURN_IF_ERROR(CheckGate(x, args.gate, args.gate_at));
  if (NumRows(x) > 0 && LastDim(x) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": x is ", x.DebugString(),
                     ", but the mean of a row needs at least one element"));
  }
  return CheckTensor(kOp, "w", w, ParamDType(exec, x.dtype()), {LastDim(x)});
}

}  // namespace

absl::Status GatedRmsNormForward(const Exec& exec,
                                 const GatedRmsNormForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", args.y, args.x));
  if (exec.backend == Backend::kCuda) {
    return GatedRmsNormForwardCuda ? GatedRmsNormForwardCuda(exec, args)
                                   : NoCudaError(kOp);
  }
  return GatedRmsNormForwardCpu(exec, args);
}

absl::Status GatedRmsNormBackward(const Exec& exec,
                                  const GatedRmsNormBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dy", args.dy, args.x));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dx", args.dx, args.x));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dgate", args.dgate, args.gate));
  if (args.dw.present()) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dw", args.dw, args.w));
  }
  if (exec.backend == Backend::kCuda) {
    return GatedRmsNormBackwardCuda ? GatedRmsNormBackwardCuda(exec, args)
                                    : NoCudaError(kOp);
  }
  return GatedRmsNormBackwardCpu(exec, args);
}

}  // namespace cadre
