#include "kernels/kda/kda.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/linear_attention/op_workspace.h"
#include "kernels/linear_attention/workspace.h"

namespace cadre {

// kda_cpu.cc
absl::Status KdaForwardCpu(const Exec& exec, const KdaForwardArgs& args);
absl::Status KdaBackwardCpu(const Exec& exec, const KdaBackwardArgs& args);
CADRE_CUDA_IMPL absl::Status KdaForwardCuda(const Exec& exec,
                                            const KdaForwardArgs& args);
CADRE_CUDA_IMPL absl::Status KdaBackwardCuda(const Exec& exec,
                                             const KdaBackwardArgs& args);

namespace {

constexpr char kOp[] = "kda";

absl::Status CheckInputs(const Exec& exec, const KdaInputs& in) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "q", in.q, 3));
  const DType dtype = in.q.dtype();
  const DType param = ParamDType(exec, dtype);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "q", in.q, dtype, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t t = in.q.dim(0), h = in.q.dim(1), k = in.q.dim(2);
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "k", in.k, in.q));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "v", in.v, dtype, {t, h, kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "z", in.z, in.q));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "beta", in.beta, param, {t, h}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "a_log", in.a_log, param, {h}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "dt_bias", in.dt_bias, param, {h * k}));
  CADRE_RETURN_IF_ERROR(CheckCuSeqlens(exec, kOp, in.cu_seqlens, t));
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "initial_state", in.initial_state, param,
                          {in.cu_seqlens.dim(0) - 1, h, k, in.v.dim(2)}));
  if (k < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": q is ", in.q.DebugString(),
                     ", but keys need at least one channel"));
  }
  if (in.lower_bound.has_value() && !(*in.lower_bound < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": lower_bound is ", *in.lower_bound,
                     "; a log-decay is bounded by a negative number (or by "
                     "none, for the softplus gate)"));
  }
  return absl::OkStatus();
}

// A state beside the inputs, which have been checked.
absl::Status CheckState(const Exec& exec, const KdaInputs& in,
                        absl::string_view name, const Tensor& state) {
  return CheckOptionalTensor(
      kOp, name, state, ParamDType(exec, in.q.dtype()),
      {in.cu_seqlens.dim(0) - 1, in.q.dim(1), in.q.dim(2), in.v.dim(2)});
}

}  // namespace

absl::Status KdaForward(const Exec& exec, const KdaForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, args.in));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "o", args.o, args.in.v));
  CADRE_RETURN_IF_ERROR(
      CheckState(exec, args.in, "final_state", args.final_state));
  if (exec.backend == Backend::kCuda)
    return KdaForwardCuda ? KdaForwardCuda(exec, args) : NoCudaError(kOp);
  return KdaForwardCpu(exec, args);
}

absl::Status KdaBackward(const Exec& exec, const KdaBackwardArgs& args) {
  const KdaInputs& in = args.in;
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, in));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "d_o", args.d_o, in.v));
  CADRE_RETURN_IF_ERROR(
      CheckState(exec, in, "d_final_state", args.d_final_state));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dq", args.dq, in.q));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dk", args.dk, in.k));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dv", args.dv, in.v));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dz", args.dz, in.z));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dbeta", args.dbeta, in.beta));
  if (args.da_log.present()) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "da_log", args.da_log, in.a_log));
  }
  if (args.ddt_bias.present()) {
    CADRE_RETURN_IF_ERROR(
        CheckLike(kOp, "ddt_bias", args.ddt_bias, in.dt_bias));
  }
  CADRE_RETURN_IF_ERROR(
      CheckState(exec, in, "d_initial_state", args.d_initial_state));
  if (exec.backend == Backend::kCuda)
    return KdaBackwardCuda ? KdaBackwardCuda(exec, args) : NoCudaError(kOp);
  return KdaBackwardCpu(exec, args);
}

int64_t KdaForwardWorkspaceBytes(int64_t tokens, int64_t heads, int64_t docs) {
  return linear_attention::LayOutWork({tokens, heads, heads, docs, false})
      .bytes;
}

int64_t KdaBackwardWorkspaceBytes(int64_t tokens, int64_t heads, int64_t docs) {
  return linear_attention::LayOutWork({tokens, heads, heads, docs, true}).bytes;
}

int64_t KdaForwardWorkspaceBytes(const Exec& exec, const KdaInputs& in) {
  if (exec.backend == Backend::kCpu) return 0;
  return linear_attention::OpWorkspaceBytes(in, /*head_gate=*/false,
                                            /*backward=*/false);
}

int64_t KdaBackwardWorkspaceBytes(const Exec& exec, const KdaInputs& in) {
  if (exec.backend == Backend::kCpu) return 0;
  return linear_attention::OpWorkspaceBytes(in, /*head_gate=*/false,
                                            /*backward=*/true);
}

}  // namespace cadre
