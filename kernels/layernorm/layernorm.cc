#include "kernels/layernorm/layernorm.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// layernorm_cpu.cc
absl::Status LayerNormForwardCpu(const Exec& exec, const LayerNormForwardArgs&);
CADRE_CUDA_IMPL absl::Status LayerNormForwardCuda(const Exec& exec,
                                                  const LayerNormForwardArgs&);

absl::Status LayerNormForward(const Exec& exec,
                              const LayerNormForwardArgs& args) {
  constexpr char kOp[] = "layernorm";
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 1));
  const DType param = ParamDType(exec, args.x.dtype());
  const int64_t d = LastDim(args.x);
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "w", args.w, param, {d}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "b", args.b, param, {d}));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "y", args.y, args.x));
  if (NumRows(args.x) > 0 && d == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": x is ", args.x.DebugString(),
                     ", but the mean of a row needs at least one element"));
  }
  if (exec.backend == Backend::kCuda) {
    return LayerNormForwardCuda ? LayerNormForwardCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return LayerNormForwardCpu(exec, args);
}

}  // namespace cadre
