#include "kernels/attention_residual/attention_residual.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// attention_residual_cpu.cc
absl::Status AttentionResidualForwardCpu(const Exec& exec,
                                         const AttentionResidualForwardArgs&);
absl::Status AttentionResidualBackwardCpu(const Exec& exec,
                                          const AttentionResidualBackwardArgs&);
CADRE_CUDA_IMPL absl::Status AttentionResidualForwardCuda(
    const Exec& exec, const AttentionResidualForwardArgs&);
CADRE_CUDA_IMPL absl::Status AttentionResidualBackwardCuda(
    const Exec& exec, const AttentionResidualBackwardArgs&);

namespace {

constexpr char kOp[] = "attention_residual";

// What both directions share; `y` is the result or its gradient.
template <typename Args>
absl::Status CheckShared(const Exec& exec, const Args& args, const Tensor& y) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "y", y, 2));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "y", y, y.dtype(), {kAnyDim, kAnyDim}));
  if (args.rows.empty() || y.dim(1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": mixes ", args.rows.size(), " rows of width ",
                     y.dim(1), ", expected at least one of each"));
  }
  if (exec.backend == Backend::kCuda &&
      args.rows.size() > kMaxAttentionResidualRows) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": mixes ", args.rows.size(), " rows; on CUDA ",
                     kMaxAttentionResidualRows, " is the most"));
  }
  for (size_t i = 0; i < args.rows.size(); ++i) {
    CADRE_RETURN_IF_ERROR(
        CheckLike(kOp, absl::StrCat("rows[", i, "]"), args.rows[i], y));
  }
  const DType param = ParamDType(exec, y.dtype());
  const int64_t num_rows = static_cast<int64_t>(args.rows.size());
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "norm_weight", args.norm_weight, param, {y.dim(1)}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "proj", args.proj, param, {y.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "p", args.p, param, {y.dim(0), num_rows}));
  return CheckTensor(kOp, "rstd", args.rstd, param, {y.dim(0), num_rows});
}

}  // namespace

absl::Status AttentionResidualForward(
    const Exec& exec, const AttentionResidualForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args, args.y));
  if (exec.backend == Backend::kCuda) {
    return AttentionResidualForwardCuda
               ? AttentionResidualForwardCuda(exec, args)
               : NoCudaError(kOp);
  }
  return AttentionResidualForwardCpu(exec, args);
}

absl::Status AttentionResidualBackward(
    const Exec& exec, const AttentionResidualBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckShared(exec, args, args.dy));
  if (args.drows.size() != args.rows.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": ", args.drows.size(), " gradients for ",
                     args.rows.size(), " rows; leave unwanted ones absent"));
  }
  for (size_t i = 0; i < args.drows.size(); ++i) {
    if (!args.drows[i].present()) continue;
    CADRE_RETURN_IF_ERROR(
        CheckLike(kOp, absl::StrCat("drows[", i, "]"), args.drows[i], args.dy));
  }
  const DType param = ParamDType(exec, args.dy.dtype());
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(
      kOp, "dnorm_weight", args.dnorm_weight, param, {args.dy.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "dproj", args.dproj, param, {args.dy.dim(1)}));
  if (exec.backend == Backend::kCuda) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "slopes", args.slopes, args.p));
    return AttentionResidualBackwardCuda
               ? AttentionResidualBackwardCuda(exec, args)
               : NoCudaError(kOp);
  }
  return AttentionResidualBackwardCpu(exec, args);
}

}  // namespace cadre
