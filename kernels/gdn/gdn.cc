#include "kernels/gdn/gdn.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/linear_attention/op_workspace.h"
#include "kernels/linear_attention/workspace.h"

namespace cadre {

// gdn_cpu.cc
absl::Status GdnForwardCpu(const Exec& exec, const GdnForwardArgs& args);
absl::Status GdnBackwardCpu(const Exec& exec, const GdnBackwardArgs& args);
CADRE_CUDA_IMPL absl::Status GdnForwardCuda(const Exec& exec,
                                            const GdnForwardArgs& args);
CADRE_CUDA_IMPL absl::Status GdnBackwardCuda(const Exec& exec,
                                             const GdnBackwardArgs& args);

namespace {

constexpr char kOp[] = "gdn";

// A state beside the inputs, whose shapes have been checked.
absl::Status CheckState(const Exec& exec, const GdnInputs& in,
                        absl::string_view name, const Tensor& state) {
  return CheckOptionalTensor(
      kOp, name, state, ParamDType(exec, in.q.dtype()),
      {in.cu_seqlens.dim(0) - 1, in.v.dim(1), in.q.dim(2), in.v.dim(2)});
}

absl::Status CheckInputs(const Exec& exec, const GdnInputs& in) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "q", in.q, 3));
  const DType dtype = in.q.dtype();
  const DType param = ParamDType(exec, dtype);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "q", in.q, dtype, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t t = in.q.dim(0);
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "k", in.k, in.q));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "v", in.v, dtype, {t, kAnyDim, kAnyDim}));
  const int64_t hk = in.q.dim(1), hv = in.v.dim(1);
  if (hk == 0 ? hv != 0 : hv % hk != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": ", hv, " value heads do not divide evenly among ", hk,
        " key heads; the number of value heads must be a multiple"));
  }
  if (in.q.dim(2) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": q is ", in.q.DebugString(),
                     ", but keys need at least one channel"));
  }
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "a", in.a, param, {t, hv}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "beta", in.beta, param, {t, hv}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "a_log", in.a_log, param, {hv}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "dt_bias", in.dt_bias, param, {hv}));
  CADRE_RETURN_IF_ERROR(CheckCuSeqlens(exec, kOp, in.cu_seqlens, t));
  return CheckState(exec, in, "initial_state", in.initial_state);
}

}  // namespace

absl::Status GdnForward(const Exec& exec, const GdnForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, args.in));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "o", args.o, args.in.v));
  CADRE_RETURN_IF_ERROR(
      CheckState(exec, args.in, "final_state", args.final_state));
  if (exec.backend == Backend::kCuda)
    return GdnForwardCuda ? GdnForwardCuda(exec, args) : NoCudaError(kOp);
  return GdnForwardCpu(exec, args);
}

absl::Status GdnBackward(const Exec& exec, const GdnBackwardArgs& args) {
  const GdnInputs& in = args.in;
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, in));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "d_o", args.d_o, in.v));
  CADRE_RETURN_IF_ERROR(
      CheckState(exec, in, "d_final_state", args.d_final_state));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dq", args.dq, in.q));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dk", args.dk, in.k));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dv", args.dv, in.v));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "da", args.da, in.a));
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
    return GdnBackwardCuda ? GdnBackwardCuda(exec, args) : NoCudaError(kOp);
  return GdnBackwardCpu(exec, args);
}

int64_t GdnForwardWorkspaceBytes(int64_t tokens, int64_t heads,
                                 int64_t key_heads, int64_t docs) {
  return linear_attention::LayOutWork({tokens, heads, key_heads, docs, false})
      .bytes;
}

int64_t GdnBackwardWorkspaceBytes(int64_t tokens, int64_t heads,
                                  int64_t key_heads, int64_t docs) {
  return linear_attention::LayOutWork({tokens, heads, key_heads, docs, true})
      .bytes;
}

int64_t GdnForwardWorkspaceBytes(const Exec& exec, const GdnInputs& in) {
  if (exec.backend == Backend::kCpu) return 0;
  return linear_attention::OpWorkspaceBytes(in, /*head_gate=*/true,
                                            /*backward=*/false);
}

int64_t GdnBackwardWorkspaceBytes(const Exec& exec, const GdnInputs& in) {
  if (exec.backend == Backend::kCpu) return 0;
  return linear_attention::OpWorkspaceBytes(in, /*head_gate=*/true,
                                            /*backward=*/true);
}

}  // namespace cadre
